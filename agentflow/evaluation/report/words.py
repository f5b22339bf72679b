"""What a run shows, in sentences that are computed from intervals and tests."""

from __future__ import annotations

from agentflow.evaluation.pairing import Difference
from agentflow.evaluation.report.format import amount, count, interval, number, p_equals, seconds, visible
from agentflow.evaluation.summary import ArmSummary, Summary
from agentflow.evaluation.verdicts import Check


def findings(summary: Summary) -> list[str]:
    """The run in a few sentences: the reference, each channel beside it, what the controls say, what stays unseen."""
    lines = [_reference(summary)]
    lines += [_channel(summary, arm) for arm in summary.channels if arm.name != summary.reference]
    lines += controls(summary)
    ends = [f"{smallest(summary)}.", errored(summary), *(visible(note) for note in summary.notes)]
    return [*lines, *(line[:1].upper() + line[1:] for line in ends)]


def smallest(summary: Summary) -> str:
    """The smallest difference that the run could have seen."""
    head = "smallest difference this run could see (80 % power): "
    if summary.smallest is None:
        return f"{head}can't be told from {count(summary.common, 'pair')} without spread"
    return (
        f"{head}{100 * summary.smallest:.1f} points of {visible(summary.primary)} over {count(summary.common, 'pair')}"
    )


def errored(summary: Summary) -> str:
    """The policy for failed items, with its counts."""
    return visible(summary.errored)


def controls(summary: Summary) -> list[str]:
    """What the control with another item's message says about each channel; or that there was none."""
    found = [f"Over {visible(c.channel)}, {visible(c.words)}." for c in summary.checks if crossing(c)]
    return found or ["No control with another item's message was run: it is not shown that any content crossed."]


def crossing(check: Check) -> bool:
    """Whether a check is the one about content."""
    return "content" in check.asks


def _reference(summary: Summary) -> str:
    arm = summary.arm(summary.reference)
    name = visible(arm.name)
    if not arm.finished:
        return f"The reference, {name}, finished no item: nothing is compared with it."
    score = interval(arm.scores[summary.primary])
    return f"The reference, {name}, scores {score} {visible(summary.primary)} over {count(arm.finished, 'item')}."


def _channel(summary: Summary, arm: ArmSummary) -> str:
    name, reference = visible(arm.name), visible(summary.reference)
    if not arm.finished:
        return f"{name} finished no item."
    paired = summary.versus(arm.name)
    if paired is None or paired.score is None:
        score = interval(arm.scores[summary.primary])
        return f"{name} scores {score} {visible(summary.primary)}; it has no item in common with {reference}."
    told = _told(paired.score, name, reference, visible(summary.primary))
    cost = _cost(arm, summary.arm(summary.reference))
    return f"{told}. {cost}"


def _told(score: Difference, name: str, reference: str, metric: str) -> str:
    change = f"{metric} {interval(score.change, sign=True)}"
    if not (score.win or score.loss):
        return f"{name} scores exactly as {reference} on all {count(score.tie, 'pair')}"
    if score.clear:
        better = "better" if score.change.mean > 0 else "worse"
        return f"{name} is {better} than {reference}: {change}, {p_equals(score.p_holm)} (Holm)"
    unseen = "" if score.detectable is None else f"; less than {score.detectable:.3f} could hardly be seen"
    return f"{name} can't be told from {reference}: {change}, {p_equals(score.p_holm)} (Holm){unseen}"


def _cost(arm: ArmSummary, reference: ArmSummary) -> str:
    ours, theirs = arm.costs, reference.costs
    tokens = f"{number(ours['prefilled'].mean)} prefilled tokens"
    wait = f"{seconds(ours['first_token_seconds'].p50)} to the first token"
    size = amount(ours["bytes"].mean)
    if not theirs:
        return f"It takes {tokens}, {size} and {wait}."
    return (
        f"It takes {tokens} instead of {number(theirs['prefilled'].mean)}, "
        f"{size} instead of {amount(theirs['bytes'].mean)}, "
        f"and {wait} instead of {seconds(theirs['first_token_seconds'].p50)} (median)."
    )
