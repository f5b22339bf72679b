"""Forward passes of a pair of frozen models with an adapter between them, for training it and measuring it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from agentflow.adapters.base import Adapter, Ropes
from agentflow.adapters.examples import Example
from agentflow.adapters.reading import Readings
from agentflow.errors import DataError
from agentflow.kv.cache import KVCache
from agentflow.kv.fanin import fitted
from agentflow.models.engine import Engine
from agentflow.models.requests import Request

Message = Literal["right", "zero", "mismatched", "none"]
"""What the receiver is given: the sender's state; zeros in its place; that of another example; nothing."""


@dataclass(frozen=True)
class Measured:
    """Right answers under a model.

    Attributes:
        nll: mean over all their tokens, nats.
        exact: share of the answers that greedy decoding gives: each of their tokens is the likeliest.
    """

    nll: float
    exact: float


@dataclass(frozen=True, eq=False)
class Answered:
    """What the receiver makes of the right answers of a batch; its rows are all their tokens.

    Attributes:
        losses: `(tokens,)` nats, with gradients in the adapter.
        likeliest: `(tokens,)` whether the right one was.
        logits: `(tokens, vocabulary)`.
    """

    losses: Tensor
    likeliest: Tensor
    logits: Tensor


class Pair:
    """Two frozen models, and what they have read."""

    def __init__(self, sender: Engine, receiver: Engine) -> None:
        self.sender, self.receiver = sender, receiver
        self._theirs, self._own = Readings(sender), Readings(receiver)

    @property
    def ropes(self) -> tuple[Ropes, Ropes]:
        """The rotary embeddings of both."""
        return self.sender.loaded.ropes, self.receiver.loaded.ropes

    def read(self, batch: Sequence[Example]) -> tuple[list[KVCache], list[KVCache]]:
        """Both models' caches of every conversation; side by side where they are on different devices."""
        asked = (self._theirs, [e.sender for e in batch]), (self._own, [e.own for e in batch])
        if self.sender.loaded.device == self.receiver.loaded.device:
            return asked[0][0].of(asked[0][1]), asked[1][0].of(asked[1][1])
        with ThreadPoolExecutor(2) as pool:
            theirs, own = (pool.submit(readings.of, rows) for readings, rows in asked)
            return theirs.result(), own.result()

    def answer(
        self, adapter: Any, batch: Sequence[Example], message: Message = "right", strangers: Sequence[Example] = ()
    ) -> Answered:
        """The right answers behind a message.

        Args:
            strangers: "mismatched" is their senders' state, one for each of the batch, of the right length.
        """
        theirs, own = self.read(batch)
        if message == "mismatched":  # the right text at the receiver, where it reads it
            others = zip(self.read(strangers)[0], theirs, strict=True)
            theirs = [fitted(other, len(cache), self.ropes[0]) for other, cache in others]
        if message == "zero":
            theirs = [cache.blanked() for cache in theirs]
        if message != "none":
            own = adapter(theirs, own, self.ropes, [e.partners for e in batch])
        return _answered(self.receiver, own, [e.asked for e in batch], batch)

    def taught(self, batch: Sequence[Example]) -> Tensor:
        """`(tokens, vocabulary)` logits of the answers where the receiver reads everything itself; no gradients."""
        with torch.no_grad():
            caches = self._own.of([e.taught[0] for e in batch])
            return _answered(self.receiver, caches, [e.taught[1] for e in batch], batch).logits

    def likeness(self, adapter: Adapter, batch: Sequence[Example]) -> Tensor:
        """`(batch, batch)` how much each message looks like each text (see `Adapter.likeness`), with gradients."""
        theirs, own = self.read(batch)
        return adapter.likeness(theirs, own, self._own.of([e.taught[0] for e in batch]), self.ropes)

    def measure(self, adapter: Any, examples: Sequence[Example], message: Message = "right", *, size: int) -> Measured:
        """The right answers under the receiver, without gradients; `size` examples at once.

        Raises:
            DataError: "mismatched", and all examples are of one conversation.
        """
        others = _strangers(examples) if message == "mismatched" else examples
        batches = zip(_batches(examples, size), _batches(others, size), strict=True)
        with torch.no_grad():
            answered = [self.answer(adapter, batch, message, strangers) for batch, strangers in batches]
        return _measured(answered, examples)

    def sender_alone(self, asked: Sequence[Example], *, size: int) -> Measured:
        """The sender answers itself; `asked` are samples with the sender at both ends."""
        with torch.no_grad():
            answered = [
                _answered(self.sender, self._theirs.of([e.taught[0] for e in b]), [e.taught[1] for e in b], b)
                for b in _batches(asked, size)
            ]
        return _measured(answered, asked)


def _answered(
    engine: Engine, caches: Sequence[KVCache], asked: Sequence[tuple[int, ...]], batch: Sequence[Example]
) -> Answered:
    rows = zip(asked, batch, caches, strict=True)
    requests = [Request((*turn, *e.answer), cache) for turn, e, cache in rows]
    logits = engine.logits(requests, keep=max(len(e.answer) for e in batch) + 1)[:, :-1].float()
    of_answers = torch.cat([logits[n, -len(e.answer) :] for n, e in enumerate(batch)])
    gold = torch.tensor([t for e in batch for t in e.answer], device=of_answers.device)
    losses = torch.nn.functional.cross_entropy(of_answers, gold, reduction="none")
    return Answered(losses, of_answers.argmax(dim=-1) == gold, of_answers)


def _strangers(examples: Sequence[Example]) -> list[Example]:
    """For each example the next one, in the order of a circle, that is of another conversation."""
    found = []
    for n, example in enumerate(examples):
        circle = (*examples[n + 1 :], *examples[:n])
        stranger = next((other for other in circle if other.sender != example.sender), None)
        if stranger is None:
            raise DataError("All held-out examples are of one conversation, so none can get another's message.")
        found.append(stranger)
    return found


def _measured(answered: Sequence[Answered], examples: Sequence[Example]) -> Measured:
    losses = torch.cat([a.losses.cpu() for a in answered])
    right = torch.cat([a.likeliest.cpu() for a in answered])
    answers = cast(Sequence[Tensor], torch.split(right, [len(e.answer) for e in examples]))
    return Measured(float(losses.mean()), sum(bool(a.all()) for a in answers) / len(answers))


def _batches(examples: Sequence[Example], size: int) -> list[Sequence[Example]]:
    return [examples[n : n + size] for n in range(0, len(examples), size)]
