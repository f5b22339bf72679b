"""Fan-in: several caches behind one another, as if their texts had been read in a row.

Keys are turned to their new positions, which is exact. What is lost is that the later texts were computed without
seeing the earlier ones; `Engine.recompute` mends the positions where that matters most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.cache import KVCache
from agentflow.kv.rope import Rope, shift


def concat(caches: Sequence[KVCache], ropes: Sequence[Rope | None], *, drop_sinks: int = 0) -> KVCache:
    """Join caches in their order.

    Args:
        ropes: the model's rotary embedding, layer by layer.
        drop_sinks: leave out this many leading entries of every cache but the first. The first tokens of a text
            soak up attention that has nowhere to go; one such sink is enough, and each further one takes mass
            from the content.

    Raises:
        PayloadError: no cache, or caches of different shapes.
    """
    if not caches:
        raise PayloadError("There is no cache to join.")
    joined = caches[0]
    for cache in caches[1:]:
        moved = shift(cache, joined.next_position, ropes, rotary=joined.next_rotary)
        if drop_sinks:
            moved = moved.select(torch.arange(min(drop_sinks, len(moved)), len(moved)))
        joined = joined.followed_by(moved)
    return joined


def fitted(cache: KVCache, length: int, ropes: Sequence[Rope | None]) -> KVCache:
    """A cache of `length` entries: cut, or standing behind itself again and again, keys turned to their new places.

    Args:
        ropes: the model's rotary embedding, layer by layer.

    Raises:
        PayloadError: the cache has no entry.
    """
    if not len(cache):
        raise PayloadError("An empty cache can't be made longer.")
    copies = -(-length // len(cache))
    whole = concat([cache] * copies, ropes) if copies > 1 else cache
    return whole.select(torch.arange(length))


def overlaid(cache: KVCache, other: KVCache, base: KVCache) -> KVCache:
    """A cache with what another one of the same positions has more than `base`: changes of two kinds added up.

    Raises:
        PayloadError: caches of different shapes or positions.
    """
    if not cache.geometry == other.geometry == base.geometry or not len(cache) == len(other) == len(base):
        raise PayloadError("Changes can be added up for caches of the same shapes and positions only.")

    def summed(ours: Sequence[Tensor], theirs: Sequence[Tensor], plain: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(a if b is c else a + (b - c) for a, b, c in zip(ours, theirs, plain, strict=True))

    keys = summed(cache.keys, other.keys, base.keys)
    return replace(cache, keys=keys, values=summed(cache.values, other.values, base.values), _arena=None)
