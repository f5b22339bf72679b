"""A cache compacted for a task: positions chosen, biases and values fitted, losses measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentflow.channels.briefing_settings import LatentBriefingSettings
from agentflow.channels.selection import Scene, select
from agentflow.kv.cache import KVCache
from agentflow.kv.matching import fit
from agentflow.kv.rope import Fixed, turn

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
    keys = tuple(_pick(k, each, layer) for layer, k in enumerate(cache.keys))
    queries = _references(scene, settings)
    rotary = None if cache.rotary is None else cache.rotary[kept]
    moved = None
    if _closes_gaps(scene, settings, len(kept)):
        rotary = torch.arange(len(kept), device=kept.device)
        queries_there = turn(queries, len(kept) - cache.next_rotary, scene.engine.loaded.ropes)
        keys = turn(keys, _steps(cache, each), scene.engine.loaded.ropes)
        moved = queries_there, keys
    found = fit(
        queries,
        cache.keys,
        cache.values,
        each,
        scene.engine.attention_scale,
        moved=moved,
        biases=cache.bias,
        bias=settings.refit in ("beta", "both"),
        refit_values=settings.refit in ("values", "both"),
        ridge=settings.ridge,
    )
    small = KVCache(keys, found.values, cache.positions[kept], cache.next_position, found.bias, rotary)
    stats = {
        "kept_share": len(kept) / max(1, len(cache)),
        "output_error": found.output_error,
        "mass_error": found.mass_error,
    }
    return Briefing(small, stats)


def _closes_gaps(scene: Scene, settings: LatentBriefingSettings, kept: int) -> bool:
    """Whether keys move: there are gaps, and the model places its tokens by turning keys alone."""
    ropes = scene.engine.loaded.ropes
    turns = any(rope is not None for rope in ropes) and not any(isinstance(rope, Fixed) for rope in ropes)
    return settings.gaps == "close" and turns and kept < scene.cache.next_rotary


def _steps(cache: KVCache, kept: Tensor) -> list[Tensor]:
    """How far the kept keys of each layer are turned to stand at 0, 1, 2, … in their order."""
    behind = torch.arange(kept.shape[-1], device=kept.device) - cache.rotary_positions[kept]
    return [behind if kept.ndim == 1 else behind[layer] for layer in range(len(cache.keys))]


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
