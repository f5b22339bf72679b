"""A cache compacted for a task: positions chosen, biases and values fitted, losses measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentflow.channels.briefing_settings import LatentBriefingSettings
from agentflow.channels.selection import Scene, select
from agentflow.kv.cache import KVCache
from agentflow.kv.matching import fit

FITTED_TOKENS = 64
"""The last tokens of the receiver's turn that are fitted to: the answer is asked from there, and time is bounded."""
REPEATED_TOKENS = 256


@dataclass(frozen=True, eq=False)
class Briefing:
    """A compacted cache and what is known about it."""

    cache: KVCache
    stats: dict[str, float]


def compact(scene: Scene, settings: LatentBriefingSettings) -> Briefing:
    """Compact the scene's trajectory for what its receiver is about to read."""
    cache = scene.cache
    kept, own = select(scene, settings)
    each = kept if own is None else own
    found = fit(
        _references(scene, settings),
        cache.keys,
        cache.values,
        each,
        scene.engine.attention_scale,
        biases=cache.bias,
        bias=settings.refit in ("beta", "both"),
        refit_values=settings.refit in ("values", "both"),
        ridge=settings.ridge,
    )
    keys = tuple(_pick(k, each, layer) for layer, k in enumerate(cache.keys))
    small = KVCache(keys, found.values, cache.positions[kept], cache.next_position, found.bias)
    stats = {
        "kept_share": len(kept) / max(1, len(cache)),
        "output_error": found.output_error,
        "mass_error": found.mass_error,
    }
    return Briefing(small, stats)


def _references(scene: Scene, settings: LatentBriefingSettings) -> tuple[Tensor, ...]:
    """The queries that the fit must answer, per layer `(heads, n, head_dim)`."""
    task = tuple(q[:, -FITTED_TOKENS:] for q in scene.queries)
    if settings.queries == "task":
        return task
    end = scene.cache.next_position
    repeated = scene.engine.queries(scene.cache, scene.token_ids[max(0, end - REPEATED_TOKENS) : end])
    if settings.queries == "repeat":
        return repeated
    return tuple(torch.cat(pair, dim=1) for pair in zip(task, repeated, strict=True))


def _pick(keys: Tensor, kept: Tensor, layer: int) -> Tensor:
    """The kept keys of a layer `(kv_heads, kept, head_dim)`."""
    if kept.ndim == 1:
        return keys.index_select(1, kept.to(keys.device))
    return keys.gather(1, kept[layer].to(keys.device).unsqueeze(-1).expand(-1, -1, keys.shape[2]))
