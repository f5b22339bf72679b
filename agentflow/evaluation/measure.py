"""From what a run left behind to one row of a comparison."""

from __future__ import annotations

from statistics import fmean

from agentflow.evaluation.probe import AnswerProbe
from agentflow.evaluation.rows import Arm, Row
from agentflow.runtime.results import ItemResult
from agentflow.tasks.base import Item, Task
from agentflow.workflow.schema import Workflow


def row_of(
    task: Task,
    item: Item,
    arm: Arm,
    node: str,
    result: ItemResult,
    workflow: Workflow,
    probe: AnswerProbe | None,
    peak: int,
) -> Row:
    """Score the answers of `node` and add up what the receivers cost.

    Receivers are the nodes that something is sent to, and the node that answers. Fixed edges are the same in every
    arm, so what they carry, and who receives nothing else, is not counted.
    """
    error = "; ".join(f"{unit}: {what}" for unit, what in result.errors.items())
    compared = {(edge.sender, edge.receiver) for edge in workflow.edges if not edge.fixed}
    receivers = {receiver for _, receiver in compared} | {node}
    received = [
        (name, r) for name, rs in result.nodes.items() if name in receivers and not workflow.is_tool(name) for r in rs
    ]
    messages = [m for name, r in received for m in r.messages if (m.sender, name) in compared]
    answers = result.scored(node, len(item.answers))
    return Row(
        item=item.id,
        arm=arm.name,
        group=item.group,
        scores={} if error else task.score(item, answers),
        answers=answers,
        nll=None if error or probe is None else probe.nll,
        kl=None if error or probe is None else probe.kl,
        prefilled=sum(r.all_prefilled for _, r in received),
        reused=sum(r.reused for _, r in received),
        generated=sum(r.all_generated for _, r in received),
        positions=sum(r.prefilled + r.reused for _, r in received),
        messages=len(messages),
        kept=sum(m.kept for m in messages),
        bytes=sum(m.bytes for m in messages),
        encode_seconds=sum(m.encode_seconds for m in messages),
        inject_seconds=sum(m.inject_seconds for m in messages),
        first_token_seconds=fmean(r.first_token_seconds for _, r in received) if received else 0.0,
        seconds=sum(r.seconds for _, r in received),
        peak_bytes=peak,
        error=error,
    )
