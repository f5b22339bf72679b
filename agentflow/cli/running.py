"""The live view of a comparison: running means of every arm, and a bar over items."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from agentflow.cli.console import amount, seconds

if TYPE_CHECKING:
    from agentflow.evaluation.rows import Comparison, Row

EVERY = 5.0


class RunningMeans:
    """Draws what a comparison knows so far; intervals are the normal approximation, reports have the bootstrap."""

    def __init__(self, items: int, title: str) -> None:
        self._title = title
        self._found: Comparison | None = None
        self._bar = Progress(
            TextColumn("items"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        )
        self._task = self._bar.add_task("items", total=items)

    def show(self, comparison: Comparison) -> None:
        """Take in a comparison after an item."""
        self._found = comparison
        self._bar.update(self._task, completed=finished(comparison))

    def __rich__(self) -> RenderableType:
        if self._found is None:
            return self._bar
        table = Table(title=escape(self._title), title_justify="left", box=None, pad_edge=False)
        for name in ("arm", "n", self._found.primary, "NLL", "prefilled", "payload", "first token"):
            table.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
        for arm in self._found.arms:
            rows = [r for r in self._found.of(arm.name) if not r.error]
            if rows:
                table.add_row(*_cells(arm.name, rows, self._found.primary), style="dim" if arm.control else "")
        return Group(table, self._bar)


def finished(comparison: Comparison) -> int:
    """Items that have a row for every arm."""
    counts: dict[str, int] = {}
    for row in comparison.rows:
        counts[row.item] = counts.get(row.item, 0) + 1
    return sum(n == len(comparison.arms) for n in counts.values())


def _cells(arm: str, rows: list[Row], primary: str) -> list[str]:
    scores = [r.scores[primary] for r in rows]
    half = f" ± {1.96 * stdev(scores) / len(scores) ** 0.5:.2f}" if len(scores) > 1 else ""
    nlls = [r.nll for r in rows if r.nll is not None]
    return [
        escape(arm),
        str(len(rows)),
        f"{fmean(scores):.2f}{half}",
        f"{fmean(nlls):.2f}" if nlls else "–",
        f"{fmean(r.prefilled for r in rows):,.0f}",
        amount(fmean(r.bytes for r in rows)),
        seconds(fmean(r.first_token_seconds for r in rows)),
    ]


@contextmanager
def running(console: Console, items: int, title: str) -> Iterator[Callable[[Comparison], None]]:
    """Show a comparison while the block lasts; plain lines, at most one in five seconds, where it is no terminal."""
    if console.is_terminal:
        view = RunningMeans(items, title)
        with Live(view, console=console, refresh_per_second=4):
            yield view.show
        return
    start = last = time.monotonic()

    def line(comparison: Comparison) -> None:
        nonlocal last
        done = finished(comparison)
        if done == items or time.monotonic() - last >= EVERY:
            last = time.monotonic()
            console.print(f"{title}: {done}/{items} items, {seconds(last - start)}", markup=False)

    yield line
