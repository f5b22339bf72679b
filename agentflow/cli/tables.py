"""Results as tables for people and as plain mappings for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from agentflow.cli.console import amount, seconds

if TYPE_CHECKING:
    from agentflow.evaluation.figures import ChannelFigures
    from agentflow.runtime.results import ItemResult


def figures_table(title: str, rows: Sequence[ChannelFigures]) -> Table:
    """One line a channel: score and cost, means over the items that ran."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("channel")
    metrics = list(rows[0].done[0].scores) if rows and rows[0].done else []
    for metric in metrics:
        table.add_column(metric, justify="right")
    for name in ("receiver prefilled", "reused", "payload", "first token", "failed"):
        table.add_column(name, justify="right")
    for row in rows:
        scores = [f"{row.mean(m):.3f}" for m in metrics]
        failed = len(row.items) - len(row.done)
        table.add_row(
            escape(row.channel),
            *scores,
            f"{row.mean_of('prefilled'):,.0f}",
            f"{row.mean_of('reused'):,.0f}",
            amount(row.mean_of("bytes")),
            seconds(row.median_of("first_token_seconds")),
            f"[red]{failed}[/]" if failed else "0",
        )
    table.caption = (
        "an item's means: tokens its receivers computed and found ready, bytes of its payloads; first token: median"
    )
    return table


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
    panels = [
        Panel(escape(str(text)) or "[dim]empty[/]", title=escape(name), title_align="left")
        for name, text in result.outputs.items()
    ]
    if not result.outputs and not result.errors:
        panels = [
            Panel(escape("\n".join(r.text for r in rs)), title=escape(node), title_align="left")
            for node, rs in result.nodes.items()
        ]
    panels += [
        Panel(f"[red]{escape(what)}[/]", title=escape(unit), title_align="left") for unit, what in result.errors.items()
    ]
    return Group(*panels)
