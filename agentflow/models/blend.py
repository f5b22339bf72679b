"""Mending a joined cache: positions that deviate most from a computation in full context are computed anew.

After CacheBlend (arXiv 2405.16444): the first layers tell which positions of the later texts would look different if
they had seen the earlier ones; those few are run through the whole model on top of everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentflow.kv.cache import KVCache
from agentflow.models.attention import Stopped
from agentflow.models.engine import Engine
from agentflow.models.plan import Plan, Segment

TELLING_LAYER = 1
"""Whose keys and values are compared: the first that depend on other positions."""


def recompute(engine: Engine, cache: KVCache, token_ids: Sequence[int], *, start: int, share: float) -> KVCache:
    """Compute a share of the entries from position `start` on anew, in the context of the whole cache.

    Args:
        cache: joined caches.
        token_ids: of every position up to `cache.next_position`.
        start: where the part begins that was computed without what stands before it.
        share: of the entries from `start` on, between 0 and 1; at 1 the result is a fresh prefill's.
    """
    first = int(torch.searchsorted(cache.positions, start))
    count = round(share * (len(cache) - first))
    if count <= 0:
        return cache
    places = torch.arange(first, len(cache), device=cache.positions.device)
    if count < len(places):
        deviation = _deviation(engine, cache, token_ids, places)
        places = places[deviation.topk(count).indices].sort().values
    keys, values = _fresh(engine, cache, token_ids, places)
    new_keys, new_values = [k.clone() for k in cache.keys], [v.clone() for v in cache.values]
    for old, new in ((new_keys, keys), (new_values, values)):
        for layer, tensor in enumerate(new):
            old[layer][:, places] = tensor
    return replace(cache, keys=tuple(new_keys), values=tuple(new_values), _arena=None)


def _deviation(engine: Engine, cache: KVCache, token_ids: Sequence[int], places: Tensor) -> Tensor:
    """Squared change of each place's key and value in the telling layer `(n,)`, had it seen everything before."""
    before = cache.select(torch.arange(int(places[0])))
    key, value = _forward(engine, before, cache, token_ids, places, TELLING_LAYER)[0]
    old_key, old_value = cache.keys[TELLING_LAYER][:, places], cache.values[TELLING_LAYER][:, places]
    return (key - old_key).float().square().sum((0, 2)) + (value - old_value).float().square().sum((0, 2))


def _fresh(
    engine: Engine, cache: KVCache, token_ids: Sequence[int], places: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of these places, per layer `(kv_heads, n, dim)`, on top of all other entries."""
    mask = torch.ones(len(cache), dtype=torch.bool, device=places.device)
    mask[places] = False
    others = cache.select(mask.nonzero()[:, 0])
    found = _forward(engine, others, cache, token_ids, places, None)
    return [k for k, _ in found], [v for _, v in found]


def _forward(
    engine: Engine, context: KVCache, cache: KVCache, token_ids: Sequence[int], places: Tensor, stop_at: int | None
) -> list[tuple[Tensor, Tensor]]:
    """Run the tokens of `places` on a context that may also stand behind them; keys and values by layer."""
    from transformers import DynamicCache

    positions = cache.rotary_positions[places][None]
    ids = torch.tensor([[token_ids[int(p)] for p in cache.positions[places]]], device=positions.device)
    own = DynamicCache()
    plan = Plan([Segment(context, causal=True)], positions, stop_at=stop_at)
    with torch.no_grad():
        try:
            engine.run_model(ids, plan, own)
        except Stopped as stopped:
            return [(stopped.key[0], stopped.value[0])]
    return [(layer.keys[0], layer.values[0]) for layer in own.layers]
