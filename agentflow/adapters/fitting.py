"""A closed-form start: both models read the same texts, and what follows from their states is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentflow.adapters.base import Adapter, Ropes
from agentflow.adapters.checkpoint import named
from agentflow.adapters.closed_form import Fitted, Moments
from agentflow.adapters.examples import Example, Sample, make_examples
from agentflow.adapters.lcf import states
from agentflow.adapters.passes import Pair
from agentflow.errors import AdapterError, PayloadError
from agentflow.kv.cache import KVCache
from agentflow.kv.sealed import read_sealed, write_sealed

KEEP_EVERY = 50
"""Texts between two saves of a fit."""


def distinct(samples: Sequence[Sample], most: int) -> list[Sample]:
    """The first samples of different texts, at most so many."""
    found = {sample.context: sample for sample in reversed(samples)}
    return list(reversed(found.values()))[:most]


def fitted(adapter: Adapter) -> Fitted:
    """The adapter as one that can be fitted; raises `AdapterError` where it can't."""
    if not isinstance(adapter, Fitted):
        raise AdapterError(
            f"Nothing of '{adapter.name}' can be found in closed form.",
            fix="Leave `closed_form` out of the recipe.",
        )
    return adapter


@dataclass(frozen=True)
class FitLog:
    """Where a fit that is on its way is kept: all of it, in one file that is whole or absent.

    Attributes:
        mark: of the training it belongs to; another one's file is not read.
    """

    path: Path
    mark: str

    def save(self, adapter: Adapter, moments: Sequence[Moments], stage: int, texts: int) -> None:
        """Write the sums of a stage after so many texts, and what earlier stages have set."""
        tensors = {f"weight.{name}": t for name, t in adapter.state_dict().items()}
        for n, one in enumerate(moments):
            tensors |= {f"{n}.sums": one.sums, f"{n}.products": one.products}
        counts = [one.count for one in moments]
        content = {"mark": self.mark, "stage": stage, "texts": texts, "counts": counts}
        write_sealed(self.path, tensors, content, None)

    def load(self, adapter: Adapter) -> tuple[int, int, list[Moments]] | None:
        """Stage, texts and sums to go on from; None where there is nothing that can be used."""
        if not self.path.exists():
            return None
        try:
            sealed = read_sealed(self.path, None)
            content: Mapping[str, Any] = sealed.content
            if content["mark"] != self.mark:
                return None
            adapter.load_state_dict(named(sealed.tensors, "weight."))
            stage, texts = int(content["stage"]), int(content["texts"])
            moments = fitted(adapter).moments(stage)
            for n, (one, count) in enumerate(zip(moments, content["counts"], strict=True)):
                one.count = int(count)
                one.sums, one.products = sealed.tensors[f"{n}.sums"].clone(), sealed.tensors[f"{n}.products"].clone()
        except (PayloadError, LookupError, TypeError, ValueError, OverflowError, RuntimeError):
            return None  # a fit takes minutes: it begins again
        return stage, texts, moments


def fit(
    adapter: Adapter,
    pair: Pair,
    samples: Sequence[Sample],
    ridge: float,
    log: FitLog | None = None,
    done: Callable[[float], None] = lambda _done: None,
) -> None:
    """Both models read the samples' texts, as often as there are stages, and the adapter's weights are set.

    Args:
        log: where it is kept every `KEEP_EVERY` texts, and gone on from.
        done: hears which share is done.
    """
    one, examples = fitted(adapter), make_examples(samples, pair.sender, pair.receiver)
    known = log.load(adapter) if log is not None else None
    first, texts, kept = known or (0, 0, one.moments(0))
    for stage in range(first, one.stages):
        moments = kept if stage == first else one.moments(stage)
        for n in range(texts if stage == first else 0, len(examples)):
            with torch.no_grad():
                ((theirs,), (own,)) = pair.read([examples[n]])
                one.take(stage, moments, *same_tokens(examples[n], theirs, own, pair.ropes))
            if log is not None and (n + 1) % KEEP_EVERY == 0:
                log.save(adapter, moments, stage, n + 1)
            done((stage * len(examples) + n + 1) / (one.stages * len(examples)))
        one.settle(stage, moments, ridge)


def same_tokens(
    example: Example, theirs: KVCache, own: KVCache, ropes: tuple[Ropes, Ropes]
) -> tuple[list[Tensor], list[Tensor]]:
    """Per layer both models' states at the tokens that stand for each other, but for the first position's."""
    places = (example.partners > 0).nonzero()[:, 0]
    places = places[places > 0]
    chosen = example.partners[places]
    return (
        [rows[chosen.to(rows.device)] for rows in states(theirs, ropes[0])],
        [rows[places.to(rows.device)] for rows in states(own, ropes[1])],
    )
