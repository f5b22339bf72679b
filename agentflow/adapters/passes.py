"""Forward passes of a pair of frozen models with an adapter between them, for training it and measuring it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from agentflow.adapters.base import Layers
from agentflow.adapters.examples import Example
from agentflow.kv.cache import KVCache
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
class Pair:
    """Two frozen models."""

    sender: Engine
    receiver: Engine

    def read(self, batch: Sequence[Example]) -> tuple[list[KVCache], list[KVCache]]:
        """Both models' caches of every conversation; side by side where they are on different devices."""
        asked = (self.sender, [e.sender for e in batch]), (self.receiver, [e.own for e in batch])
        if self.sender.loaded.device == self.receiver.loaded.device:
            return _caches(*asked[0]), _caches(*asked[1])
        with ThreadPoolExecutor(2) as pool:
            theirs, own = (pool.submit(_caches, *one) for one in asked)
            return theirs.result(), own.result()

    def answer_losses(
        self, adapter: Any, batch: Sequence[Example], message: Message = "right"
    ) -> tuple[Tensor, Tensor]:
        """Each answer token's loss `(tokens,)` in nats, with gradients in the adapter, and which were the likeliest."""
        theirs, own = self.read(batch)
        if message == "mismatched":  # the right text at the receiver, another's state from the sender
            theirs = [_resized(theirs[n - 1], len(theirs[n])) for n in range(len(theirs))]
        if message == "zero":
            theirs = [_blank(cache) for cache in theirs]
        if message != "none":
            own = fuse(adapter, theirs, own, [e.partners for e in batch])
        return _losses(self.receiver, own, batch)

    def measure(self, adapter: Any, examples: Sequence[Example], message: Message = "right", *, size: int) -> Measured:
        """The right answers under the receiver, without gradients; `size` examples at once."""
        with torch.no_grad():
            parts = [self.answer_losses(adapter, b, message) for b in _batches(examples, size)]
        return _measured(parts, examples)

    def sender_alone(self, asked: Sequence[Example], *, size: int) -> Measured:
        """The sender answers itself; `asked` are samples with the sender at both ends."""
        with torch.no_grad():
            parts = [_losses(self.sender, _caches(self.sender, [e.own for e in b]), b) for b in _batches(asked, size)]
        return _measured(parts, asked)


def fuse(adapter: Any, theirs: Sequence[KVCache], own: Sequence[KVCache], partners: Sequence[Tensor]) -> list[KVCache]:
    """Each receiver's cache with the sender's in it. Adapters are token-wise: a batch is its tokens in a row.

    Args:
        adapter: called with the `Layers` of sender and receiver, gives what to add.
    """
    places = [(p >= 0).nonzero()[:, 0] for p in partners]
    chosen = [p[at] for p, at in zip(partners, places, strict=True)]
    sender = _rows([Layers.of(c) for c in theirs], chosen)
    added = adapter(sender, _rows([Layers.of(c) for c in own], places))
    lengths = [len(at) for at in places]
    keys = [t.split(lengths, dim=-2) for t in added.keys]
    values = [t.split(lengths, dim=-2) for t in added.values]
    return [
        replace(
            cache,
            keys=tuple(k.index_add(1, at.to(k.device), new[n].to(k)) for k, new in zip(cache.keys, keys, strict=True)),
            values=tuple(
                v.index_add(1, at.to(v.device), new[n].to(v)) for v, new in zip(cache.values, values, strict=True)
            ),
            _arena=None,
        )
        for n, (cache, at) in enumerate(zip(own, places, strict=True))
    ]


def _rows(caches: Sequence[Layers], picked: Sequence[Tensor]) -> Layers:
    def joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        layers = zip(*parts, strict=True)
        return [
            torch.cat([t.index_select(1, at.to(t.device)) for t, at in zip(row, picked, strict=True)], dim=1).float()
            for row in layers
        ]

    return Layers(joined([c.keys for c in caches]), joined([c.values for c in caches]))


def _losses(engine: Engine, caches: Sequence[KVCache], batch: Sequence[Example]) -> tuple[Tensor, Tensor]:
    requests = [Request((*e.asked, *e.answer), cache) for e, cache in zip(batch, caches, strict=True)]
    logits = engine.logits(requests, keep=max(len(e.answer) for e in batch) + 1)[:, :-1].float()
    rows = torch.cat([logits[n, -len(e.answer) :] for n, e in enumerate(batch)])
    gold = torch.tensor([t for e in batch for t in e.answer], device=rows.device)
    return torch.nn.functional.cross_entropy(rows, gold, reduction="none"), rows.argmax(dim=-1) == gold


def _measured(parts: Sequence[tuple[Tensor, Tensor]], examples: Sequence[Example]) -> Measured:
    losses, right = (torch.cat([part[n].cpu() for part in parts]) for n in (0, 1))
    answers = cast(Sequence[Tensor], torch.split(right, [len(e.answer) for e in examples]))
    return Measured(float(losses.mean()), sum(bool(a.all()) for a in answers) / len(answers))


def _caches(engine: Engine, rows: Sequence[tuple[int, ...]]) -> list[KVCache]:
    asked = [Request(ids, max_new_tokens=0, keep_cache=True) for ids in rows]
    return [answer.cache for answer in engine.generate(asked) if answer.cache is not None]


def _batches(examples: Sequence[Example], size: int) -> list[Sequence[Example]]:
    return [examples[n : n + size] for n in range(0, len(examples), size)]


def _resized(cache: KVCache, length: int) -> KVCache:
    """A cache of so many positions: cut, or its last position again and again."""
    picked = torch.arange(length).clamp_max(len(cache) - 1)
    keys, values = ([t[:, picked.to(t.device)] for t in part] for part in (cache.keys, cache.values))
    return KVCache.stacked(keys, values)


def _blank(cache: KVCache) -> KVCache:
    keys, values = ([torch.zeros_like(t) for t in part] for part in (cache.keys, cache.values))
    return KVCache.stacked(keys, values)
