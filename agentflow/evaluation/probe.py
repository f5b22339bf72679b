"""How likely the right answers are where an agent is about to answer: NLL, and KL to the reader of the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from torch import Tensor

from agentflow.models.engine import Engine
from agentflow.models.requests import Generation
from agentflow.runtime.agent import Turnplan
from agentflow.runtime.scheduler import Unit
from agentflow.workflow.frames import address


class AnswerProbe:
    """Scores the right answers at every turn of one node; use one for each item and arm.

    Args:
        node: whose turns are scored; of one in a loop, those of the last round that it comes to.
        answers: the right answer of each of its children, in order.
        reference: distributions of the reference arm by child, to diverge from.
        keep: whether to keep this arm's distributions, as a reference for others.
    """

    def __init__(
        self, node: str, answers: Sequence[str], *, reference: dict[int, Tensor] | None = None, keep: bool = False
    ) -> None:
        self._node, self._answers = address(node), list(answers)
        self._reference, self._keep = reference, keep
        self._nll: dict[int, float] = {}
        self._kl: dict[int, float] = {}
        self.distributions: dict[int, Tensor] = {}

    def __call__(self, unit: Unit, engine: Engine, plan: Turnplan, said: Generation) -> None:
        """Score one turn, if it is of the node in question; its prompt is not computed again."""
        child = unit.child or 0
        if address(unit.node) != self._node or child >= len(self._answers) or not self._answers[child]:
            return
        answer = engine.tokenizer(self._answers[child], add_special_tokens=False)["input_ids"]
        compared = self._reference is not None and child in self._reference
        prefix, prompt = plan.request.prefix, plan.request.token_ids
        if said.cache is not None:
            last = (prefix.next_position if prefix else 0) + len(prompt) - 1
            prefix, prompt = said.cache.before(last) if last else None, prompt[-1:]
        score = engine.score(prefix, prompt, answer, keep_distribution=self._keep or compared)
        self._nll[child] = score.nll
        if score.distribution is None:
            return
        if self._keep:
            self.distributions[child] = score.distribution
        if compared:
            assert self._reference is not None
            self._kl[child] = divergence(self._reference[child], score.distribution)

    @property
    def nll(self) -> float | None:
        """Mean over the answers, nats per token; None when none was scored."""
        return fmean(self._nll.values()) if self._nll else None

    @property
    def kl(self) -> float | None:
        """Mean over the answers, nats per token; None without a reference."""
        return fmean(self._kl.values()) if self._kl else None


def divergence(reference: Tensor, other: Tensor) -> float:
    """KL(reference ‖ other) in nats, mean over the places; both `(n, vocabulary)` log-probabilities."""
    if reference.shape != other.shape:  # another tokenizer: no common vocabulary to compare over
        return float("nan")
    return float((reference.exp() * (reference - other)).sum(dim=-1).mean())
