"""A comparison on a terminal: channels, controls below them, what the controls say, and what stays unseen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.box import Box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentflow.evaluation.report.columns import Column, columns, heading
from agentflow.evaluation.report.format import short, visible
from agentflow.evaluation.report.words import controls, errored, smallest
from agentflow.evaluation.summary import ArmSummary, Summary
from agentflow.evaluation.verdicts import Verdict

LONGEST_NAME = 30
RULES = Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")
STYLES: dict[Verdict, str] = {
    "shown": "green",
    "shown by NLL": "green",
    "not shown": "yellow",
    "reversed": "red",
    "no data": "dim",
}


@dataclass(frozen=True)
class ComparisonView:
    """A summary for rich to print; figures that don't fit the width are left out, least needed first.

    Attributes:
        wide: show every figure, whatever the width.
        report: where the full report is, for the last line.
    """

    summary: Summary
    wide: bool = False
    report: Path | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(heading(self.summary), style="bold")
        yield from self._figures(console, options)
        if self.summary.checks:
            yield _verdicts(self.summary)
        else:
            yield Text(controls(self.summary)[0], style="yellow")
        yield from self._footer()

    def _figures(self, console: Console, options: ConsoleOptions) -> RenderResult:
        every = columns(self.summary, edges=3 if self.wide else 2)
        shown = list(every)
        while (
            not self.wide
            and len(shown) > 1
            and _width(_table(self.summary, shown), console, options) > options.max_width
        ):
            shown.remove(max(shown, key=lambda c: c.rank))
        table = _table(self.summary, shown)
        yield table
        left = [c.title for c in every if c not in shown]
        if left:
            yield Text(f"not shown for want of room: {', '.join(left)}", style="dim")

    def _footer(self) -> RenderResult:
        for note in self.summary.notes:
            yield Text(visible(note), style="yellow")
        yield Text(errored(self.summary), style="dim")
        last = Text(smallest(self.summary), style="bold")
        if self.report is not None:
            last.append(f" · report: {visible(self.report)}", style="default")
        yield last


def _width(table: Table, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options.update(max_width=10_000), table).maximum


def _table(summary: Summary, shown: list[Column]) -> Table:
    table = Table(box=RULES, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("channel", no_wrap=True)
    for column in shown:
        table.add_column(Text(column.title.replace(" p50/", "\np50/")), justify="right", no_wrap=True)
    for arm in summary.channels:
        table.add_row(*_row(arm, shown, "bold"), end_section=arm is summary.channels[-1])
    for arm in summary.controls:
        table.add_row(*_row(arm, shown, "dim"))
    return table


def _row(arm: ArmSummary, shown: list[Column], style: str) -> list[Text]:
    name = Text(short(arm.name, LONGEST_NAME), style=style)
    rest = "" if arm.kind == "channel" else "dim"
    return [name, *(Text(c.cell(arm), style="red" if c.key == "failed" and arm.failed else rest) for c in shown)]


def _verdicts(summary: Summary) -> Table:
    table = Table(box=RULES, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("control", max_width=LONGEST_NAME)
    table.add_column("of", max_width=LONGEST_NAME)
    table.add_column("says", ratio=1)
    before = ""
    for check in summary.checks:
        control = summary.arm(check.control)
        name = short(control.control or control.name, LONGEST_NAME)
        table.add_row(
            Text("" if name == before else name),
            Text(short(check.channel, LONGEST_NAME)),
            Text(visible(check.words), style=STYLES[check.verdict]),
        )
        before = name
    return table
