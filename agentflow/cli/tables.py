"""Results as tables for people and as plain mappings for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentflow.cli.console import amount, count, number, plain, seconds, visible

if TYPE_CHECKING:
    from agentflow.evaluation.figures import ChannelFigures
    from agentflow.runtime.results import ItemResult

MOST_FAILURES = 5
CAPTION = (
    "Means over items: tokens the receivers computed, tokens they found ready, payload bytes. First token: median."
)


@dataclass(frozen=True)
class FiguresTable:
    """Score and cost of each channel: a row each, or, where the terminal is too narrow, a column each."""

    title: str
    rows: tuple[ChannelFigures, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table(tall=False)
        if Measurement.get(console, options.update(max_width=1000), table).maximum > options.max_width:
            table = self._table(tall=True)
        yield Text(visible(self.title), style="italic")
        yield table
        for row in self.rows:
            for group, count_, score, steps in row.by_group():
                name = visible(group or "all")
                yield Text(f"{name}: {count(count_, 'episode')}, {row.primary} {score:.3f}, {steps:.1f} steps")
        yield Text(CAPTION, style="dim italic")

    def _table(self, *, tall: bool) -> Table:
        metrics = list(dict.fromkeys(m for row in self.rows for item in row.done for m in item.scores))
        lines = [
            ("channel", [f"[bold]{plain(row.channel)}[/]" for row in self.rows]),
            *((plain(m), [number(row.mean(m), ".3f") for row in self.rows]) for m in metrics),
            *_steps(self.rows),
            ("prefilled", [number(row.mean_of("prefilled")) for row in self.rows]),
            ("reused", [number(row.mean_of("reused")) for row in self.rows]),
            ("payload", [amount(row.mean_of("bytes")) for row in self.rows]),
            ("first token", [seconds(row.median_of("first_token_seconds")) for row in self.rows]),
        ]
        failed = [_failed(row) for row in self.rows]
        if any(failed):
            lines.append(("failed", [f"[red]{n}[/]" if n else "0" for n in failed]))
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        heads = [[name, *cells] for name, cells in lines]
        body = heads if tall else [list(line) for line in zip(*heads, strict=True)]
        for at, head in enumerate(body[0]):
            table.add_column(head, justify="right" if at else "left", no_wrap=not tall, overflow="fold")
        for line in body[1:]:
            table.add_row(*line)
        return table


def _steps(rows: Sequence[ChannelFigures]) -> list[tuple[str, list[str]]]:
    if all(item.steps is None for row in rows for item in row.items):
        return []
    return [("steps", [number(row.mean_of("steps"), ".1f") for row in rows])]


def _failed(row: ChannelFigures) -> int:
    return len(row.items) - len(row.done)


def failures(rows: Sequence[ChannelFigures]) -> list[str]:
    """The first failures of a run, in rich's markup, and how many more there are."""
    found = [f"{row.channel}, {item.item}: {item.error}" for row in rows for item in row.items if item.error]
    lines = [f"[red]failed[/] {plain(line)}" for line in found[:MOST_FAILURES]]
    more = len(found) - MOST_FAILURES
    return [*lines, f"[red]failed[/] {count(more, 'more item')}, see the run's folder"] if more > 0 else lines


def figures_json(row: ChannelFigures) -> dict[str, Any]:
    """Everything that was measured over one channel."""
    metrics = list(row.done[0].scores) if row.done else []
    return {
        "channel": row.channel,
        "scores": {m: row.mean(m) for m in metrics},
        "prefilled": row.mean_of("prefilled"),
        "reused": row.mean_of("reused"),
        "bytes": row.mean_of("bytes"),
        "first_token_seconds": row.median_of("first_token_seconds"),
        "items": [asdict(i) for i in row.items],
    }


def item_panel(result: ItemResult) -> Group:
    """Outputs of a single pass, and what went wrong."""
    texts = {name: str(text) for name, text in result.outputs.items()}
    if not texts and not result.errors:
        texts = {node: "\n".join(r.text for r in rs) for node, rs in result.nodes.items()}
    panels = [
        Panel(plain(text) if text else "[dim]empty[/]", title=plain(name), title_align="left")
        for name, text in texts.items()
    ]
    panels += [
        Panel(f"[red]{plain(what)}[/]", title=plain(unit), title_align="left") for unit, what in result.errors.items()
    ]
    return Group(*panels)
