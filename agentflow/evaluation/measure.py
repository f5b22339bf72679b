"""From what a run left behind to one row of a comparison."""

from __future__ import annotations

from statistics import fmean

from agentflow.channels.cache import CacheChannel
from agentflow.evaluation.answers import predictions, steps_of
from agentflow.evaluation.probe import AnswerProbe
from agentflow.evaluation.rows import Arm, Row
from agentflow.runtime.results import ItemResult
from agentflow.tasks.base import Item, Task
from agentflow.workflow.frames import address
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

    Receivers are the agents that something is sent to, the nodes that go on with their caches over fixed edges, and the
    node that answers. What fixed edges carry is the same in every arm, and is not counted.
    """
    error = "; ".join(f"{unit}: {what}" for unit, what in result.errors.items())
    compared = [edge for edge in workflow.edges if not edge.fixed]
    receivers = _going_on(workflow, {edge.receiver for edge in compared}) | {node}
    # By address: what comes out of a loop was said in the round it has ended with, and not in the last one there is.
    heard = {address(name) for name in receivers if not workflow.is_tool(name)}
    pairs = {(address(edge.sender), address(edge.receiver)) for edge in compared}
    received = [(name, r) for name, rs in result.nodes.items() if address(name) in heard for r in rs]
    messages = [m for name, r in received for m in r.messages if (address(m.sender), address(name)) in pairs]
    answers = predictions(task, item, result, node)
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
        steps=None if error else steps_of(task, answers),
        error=error,
    )


def _going_on(workflow: Workflow, first: set[str]) -> set[str]:
    """These nodes, and all that stand on their caches, or on those of such nodes, whatever channel is compared."""
    after: dict[str, list[str]] = {}
    for edge in workflow.edges:
        if not edge.fixed or edge.channel.name != CacheChannel.name:
            continue
        after.setdefault(edge.sender, []).append(edge.receiver)
    found, pending = set(first), list(first)
    while pending:
        new = [name for name in after.get(pending.pop(), ()) if name not in found]
        found.update(new)
        pending += new
    return found
