"""What each control says about a channel, in words that follow from intervals and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentflow.evaluation.pairing import Difference, Paired, Pairs, adjusted
from agentflow.evaluation.rows import Arm, Comparison
from agentflow.evaluation.statistics import minus

Verdict = Literal["shown", "shown by NLL", "not shown", "reversed", "no data"]


@dataclass(frozen=True)
class Question:
    """What a control asks, what its channel shows by beating it, and the names of the two sides."""

    asks: str
    claim: str
    ours: str
    rival: str


@dataclass(frozen=True)
class Check:
    """One control against one channel.

    Attributes:
        control, channel: names of arms.
        paired: channel − control.
        verdict: "shown" needs an interval above zero and a Holm-adjusted p below 0.05, over all checks of the run.
        words: the verdict as a sentence.
    """

    control: str
    channel: str
    asks: str
    paired: Paired
    verdict: Verdict
    words: str

    @property
    def p(self) -> float | None:
        """The adjusted p of the figure that the verdict rests on."""
        rests_on = self.paired.nll if self.verdict == "shown by NLL" else self.paired.score
        return rests_on.p_holm if rests_on else None


# The first key that a control's name contains decides.
_QUESTIONS = {
    "mismatch": Question(
        "is it this item's content that helps?", "content crossed", "the right message", "the mismatched one"
    ),
    "zero": Question("do the payload's values matter, or only its length?", "values count", "it", "a payload of zeros"),
    "self": Question("does the sender add anything?", "the sender adds", "it", "the receiver fused with itself"),
    "sender": Question("are two agents better than the first alone?", "the receiver adds", "it", "the sender alone"),
    "byte": Question("is it worth its bytes?", "it is worth its bytes", "it", "text of as many bytes"),
    "position": Question("is it worth its positions?", "it is worth its positions", "it", "text of as many positions"),
    "second": Question("is it worth its seconds?", "it is worth its seconds", "it", "text of as many seconds"),
    "no message": Question("does a message help at all?", "a message helps", "it", "no message"),
}


def question_of(control: Arm) -> Question:
    """The question behind a control; a plain one for a control of somebody's own."""
    name = (control.control or control.name).lower().replace("_", " ").replace("-", " ")
    found = next((q for key, q in _QUESTIONS.items() if key in name), None)
    return found or Question("is the channel better than it?", "it is better", "it", "the control")


def checks(comparison: Comparison, pairs: Pairs) -> tuple[Check, ...]:
    """Every control against every channel that it is about; p-values are adjusted over all of them."""
    asked = [
        (control, channel)
        for control in comparison.arms
        if control.kind == "control"
        for channel in subjects(control, comparison.arms)
    ]
    family = adjusted([pairs.of(channel.name, control.name) for control, channel in asked])
    return tuple(
        _check(question_of(control), paired, comparison.primary)
        for (control, _), paired in zip(asked, family, strict=True)
    )


def subjects(control: Arm, arms: Sequence[Arm]) -> list[Arm]:
    """The channels that a control is about: the one it names, with its settings; all of them if it names none."""
    channels = [a for a in arms if a.kind == "channel"]
    if not control.channel:
        return channels
    for fits in (
        [a for a in channels if control.name.endswith(f"({a.name})")],
        [a for a in channels if a.channel == control.channel and a.settings == control.settings],
        [a for a in channels if control.channel in (a.channel, a.name)],
    ):
        if fits:
            return fits
    return []


def _check(question: Question, paired: Paired, metric: str) -> Check:
    verdict, words = _judge(question, paired, metric)
    return Check(paired.other, paired.arm, question.asks, paired, verdict, words)


def _judge(q: Question, paired: Paired, metric: str) -> tuple[Verdict, str]:
    score, nll = paired.score, paired.nll
    if score is None:
        return "no data", "no data: there is no item that both finished"
    change = score.change
    if score.clear and change.mean > 0:
        return "shown", f"{q.claim}: {q.ours} beats {q.rival} by {change.text()} {metric}"
    if score.clear:
        return "reversed", f"the opposite: {q.rival} beats {q.ours} by {_flipped(score)} {metric}"
    plain = f"{change.text(sign=True)} {metric} against {q.rival}{_why(score)}"
    if nll is not None and nll.clear and nll.change.mean < 0:
        return "shown by NLL", f"{q.claim}, by NLL alone: {_flipped(nll)} nats lower than {q.rival}; {plain}"
    return "not shown", f"not shown that {q.claim}: {plain}"


def _flipped(difference: Difference) -> str:
    change = difference.change
    return minus(f"{-change.mean:.2f} [{-(change.high or 0.0):.2f}, {-(change.low or 0.0):.2f}]")


def _why(score: Difference) -> str:
    """Why an interval away from zero is not enough."""
    low, high = score.change.low, score.change.high
    if low is None or high is None or low <= 0 <= high:
        return ""
    p = score.p if score.p_holm is None else score.p_holm
    return f", but p = {p:.2f} over {score.change.n} {'item' if score.change.n == 1 else 'items'}"
