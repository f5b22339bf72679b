"""`--dry-run`: what a run would do with every node, and why, as a tree or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.cli.console import count, out, plain, print_json

if TYPE_CHECKING:
    from agentflow.cli.jobs import Job
    from agentflow.cli.options import RunSettings
    from agentflow.runtime.binding import Binding
    from agentflow.runtime.rehearsal import Foreseen


@dataclass
class _Row:
    """A node's units, children of maps and items folded: for each verdict how often, and for which reasons."""

    reasons: dict[str, Counter[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        total = sum(reasons.total() for reasons in self.reasons.values())
        parts = []
        for verdict, reasons in self.reasons.items():
            why = [reason for reason, _ in reasons.most_common() if reason]
            shown = f" ({why[0]}{f'; and {len(why) - 1} more reasons' if len(why) > 1 else ''})" if why else ""
            parts.append(f"{reasons.total()} {verdict}{shown}" if total > 1 else f"{verdict}{shown}")
        return ", ".join(parts) or "runs over nothing"

    def to_json(self) -> dict[str, Any]:
        return {verdict: {"units": n.total(), "because": [r for r in n if r]} for verdict, n in self.reasons.items()}


def rehearse_job(
    job: Job, binding: Binding, settings: RunSettings, *, resumed: Path | None, forced: Sequence[str]
) -> int:
    """Print what running a job would do; the exit code. Nothing is written, and no model is loaded."""
    from agentflow.runtime.kept import read_results
    from agentflow.runtime.rehearsal import rehearse
    from agentflow.runtime.runs import check_form

    if resumed is not None:
        check_form(resumed)
    stored = read_results(resumed) if resumed is not None else {}
    found = rehearse(binding, job.passes, seed=settings.seed, until=settings.until, stored=stored, forced=forced)
    rows = _rows(job.workflow.nodes, found)
    totals = Counter(one.verdict for one in found)
    if settings.as_json:
        nodes = {name: row.to_json() for name, row in rows.items()}
        print_json({"run": str(resumed) if resumed else None, "units": dict(totals), "nodes": nodes})
        return 0
    said = ", ".join(f"{number:,} {verdict}" for verdict, number in totals.items())
    title = f"{resumed.name if resumed else job.workflow.name}: {count(len(job.passes), 'item')}; {said}"
    for line in _tree(title, binding, rows):
        out.print(plain(line), soft_wrap=True)
    return 0


def _rows(nodes: Iterable[str], found: Iterable[Foreseen]) -> dict[str, _Row]:
    from agentflow.workflow.frames import address

    rows = {address(node): _Row() for node in nodes}
    for one in found:
        rows[address(one.unit.node)].reasons.setdefault(one.verdict, Counter())[one.because] += 1
    return rows


def _tree(title: str, binding: Binding, rows: dict[str, _Row]) -> list[str]:
    from agentflow.workflow.drawing import tree_lines
    from agentflow.workflow.folding import folded

    graph = folded(binding.workflow, [channel.name for channel in binding.channels])
    return tree_lines(
        title,
        graph,
        titled=lambda name: f"{name} · {rows[name]}",
        sent=lambda sender, receiver: graph.edges[sender, receiver]["channel"],
    )
