"""The live view of a run: a row a node and a bar over items on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from agentflow.cli.console import amount, seconds

if TYPE_CHECKING:
    from agentflow.runtime.events import Event, Listener
    from agentflow.workflow.schema import Workflow

SPOKEN = 60


@dataclass
class _NodeRow:
    running: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    prefilled: int = 0
    reused: int = 0
    generated: int = 0
    bytes: int = 0
    saying: str = ""

    @property
    def state(self) -> str:
        parts = [f"[cyan]{self.running} running[/]" if self.running else ""]
        parts += [f"[green]{self.done} done[/]" if self.done else ""]
        parts += [f"[red]{self.failed} failed[/]" if self.failed else ""]
        parts += [f"[yellow]{self.skipped} skipped[/]" if self.skipped else ""]
        return ", ".join(filter(None, parts)) or "[dim]waiting[/]"


class LiveView:
    """Collects events and draws itself; children of a map are folded into their node's row."""

    def __init__(self, workflow: Workflow, title: str) -> None:
        self._rows = {node: _NodeRow() for node in workflow.nodes}
        self._title = title
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("items", total=None)

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if event.kind == "run_started":
            self._bar.update(self._task, total=event.data["items"])
        elif event.kind == "item_finished":
            self._bar.advance(self._task)
        row = self._rows.get(event.node)
        if row is None:
            return
        if event.kind == "node_started":
            row.running += 1
            row.saying = ""
        elif event.kind == "node_token":
            row.saying = (row.saying + event.data["text"])[-SPOKEN:]
        elif event.kind == "message":
            row.bytes += event.data["bytes"]
        elif event.kind == "node_skipped":
            row.skipped += 1
        elif event.kind == "node_failed":
            row.running, row.failed = max(0, row.running - 1), row.failed + 1
        elif event.kind == "node_finished":
            row.running, row.done = row.running - 1, row.done + 1
            row.seconds += event.data["seconds"]
            row.prefilled += event.data["prefilled"]
            row.reused += event.data["reused"]
            row.generated += event.data["generated"]

    def __rich__(self) -> RenderableType:
        table = Table(title=escape(self._title), title_justify="left", expand=True, box=None, pad_edge=False)
        for name in ("node", "state", "seconds", "prefilled", "reused", "generated", "received", ""):
            table.add_column(name, justify="left" if name in ("node", "state", "") else "right", no_wrap=True)
        for node, row in self._rows.items():
            saying = escape(row.saying.replace("\n", " ")) if row.running else ""
            table.add_row(
                node,
                row.state,
                f"{row.seconds:.1f}",
                f"{row.prefilled:,}",
                f"{row.reused:,}",
                f"{row.generated:,}",
                amount(row.bytes),
                f"[dim]{saying}[/]",
            )
        return Group(table, self._bar)


class PlainLines:
    """One line for each node of a single item, or for each item of many."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._total = self._finished = 0
        self._last = 0.0

    def __call__(self, event: Event) -> None:
        """Print a line where one is due."""
        if event.kind == "run_started":
            self._total = event.data["items"]
        elif event.kind == "node_failed":
            self._say(f"{event.item}/{event.node}: failed: {event.data['error']}")
        elif event.kind == "node_finished" and self._total == 1:
            data = event.data
            child = "" if event.child is None else f"[{event.child}]"
            self._say(
                f"{event.node}{child}: {seconds(data['seconds'])}, prefilled {data['prefilled']}, "
                f"reused {data['reused']}, generated {data['generated']}"
            )
        elif event.kind == "item_finished":
            self._finished += 1
            if self._total > 1 and (self._finished == self._total or time.monotonic() - self._last > 5):
                self._last = time.monotonic()
                self._say(f"{self._finished}/{self._total} items, {seconds(event.at)}")

    def _say(self, line: str) -> None:
        self._console.print(f"{self._title}: {line}", markup=False)


@contextmanager
def live(console: Console, workflow: Workflow, title: str) -> Iterator[Listener]:
    """A listener that shows a run while the block lasts."""
    if not console.is_terminal:
        yield PlainLines(console, title)
        return
    view = LiveView(workflow, title)
    with Live(view, console=console, refresh_per_second=8):
        yield view


@contextmanager
def loading(console: Console) -> Iterator[Progress | None]:
    """A spinner for fetching and loading models; None where the output is no terminal."""
    if not console.is_terminal:
        yield None
        return
    with Progress(
        TextColumn("[dim]{task.description}[/]"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        yield progress
