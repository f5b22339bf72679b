"""What a run over a task's items measured, item by item, for one channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from agentflow.evaluation.answers import predictions, steps_of
from agentflow.runtime.binding import Binding
from agentflow.runtime.results import ItemResult, NodeResult
from agentflow.tasks.base import Item, Task


@dataclass(frozen=True)
class ItemFigures:
    """One item over one channel.

    Attributes:
        scores: every metric of the task; empty when the item failed.
        prefilled: tokens computed for the receivers' prompts and by channels on the way; `reused` stood in a cache.
        generated: tokens that all nodes generated, and channels on the way.
        bytes: of all payloads.
        first_token_seconds: mean over the receivers: hand-over and prefill up to the first token.
        seconds: summed over all nodes.
        steps: commands of the item's episode; None where the task has no episodes.
    """

    item: str
    group: str
    scores: dict[str, float]
    answers: tuple[str, ...]
    prefilled: int
    reused: int
    generated: int
    bytes: int
    first_token_seconds: float
    seconds: float
    error: str = ""
    steps: int | None = None


@dataclass(frozen=True)
class ChannelFigures:
    """All items over one channel."""

    channel: str
    primary: str
    items: tuple[ItemFigures, ...] = field(default_factory=tuple)

    @property
    def done(self) -> list[ItemFigures]:
        """Items that ran to the end."""
        return [i for i in self.items if not i.error]

    def mean(self, metric: str) -> float:
        """Mean of a metric over the items that ran; NaN without any."""
        found = [i.scores[metric] for i in self.done]
        return fmean(found) if found else float("nan")

    def mean_of(self, field_name: str) -> float:
        """Mean of a cost figure over the items that ran; NaN without any."""
        found = [float(getattr(i, field_name)) for i in self.done]
        return fmean(found) if found else float("nan")

    def median_of(self, field_name: str) -> float:
        """Median of a cost figure over the items that ran; NaN without any."""
        found = [float(getattr(i, field_name)) for i in self.done]
        return median(found) if found else float("nan")

    def by_group(self) -> list[tuple[str, int, float, float]]:
        """Of episodes: every group's name, how many there are, the mean of the primary metric, and of the steps."""
        groups = sorted({i.group for i in self.done if i.steps is not None})
        found = [(group, [i for i in self.done if i.group == group]) for group in groups]
        return [
            (group, len(items), fmean(i.scores[self.primary] for i in items), fmean(i.steps or 0 for i in items))
            for group, items in found
        ]


def measure(
    binding: Binding, task: Task, channel: str, items: Sequence[Item], results: Sequence[ItemResult]
) -> ChannelFigures:
    """Score every item's answers and add up what its receivers cost."""
    receivers = {edge.receiver for edge in binding.workflow.edges} - set(binding.tools)
    answer = binding.workflow.task.answer if binding.workflow.task else None
    rows = [_item(task, item, result, receivers, answer or "") for item, result in zip(items, results, strict=True)]
    return ChannelFigures(channel, task.primary, tuple(rows))


def _item(task: Task, item: Item, result: ItemResult, receivers: set[str], answer: str) -> ItemFigures:
    every = [r for rs in result.nodes.values() for r in rs]
    received: list[NodeResult] = [r for node, rs in result.nodes.items() if node in receivers for r in rs]
    error = "; ".join(f"{unit}: {what}" for unit, what in result.errors.items())
    answers = predictions(task, item, result, answer)
    return ItemFigures(
        item=item.id,
        group=item.group,
        scores={} if error else task.score(item, answers),
        answers=answers,
        prefilled=sum(r.all_prefilled for r in received),
        reused=sum(r.reused for r in received),
        generated=sum(r.all_generated for r in every),
        bytes=sum(m.bytes for r in every for m in r.messages),
        first_token_seconds=fmean([r.first_token_seconds for r in received]) if received else 0.0,
        seconds=sum(r.seconds for r in every),
        steps=None if error else steps_of(task, answers),
        error=error,
    )
