"""Moving cached keys to other positions.

Rotary embeddings turn a key by an angle proportional to its position, so a cached key moves by `delta` positions
when it is turned further by the angle of `delta`. Values carry no position. The cosines and sines that a model
uses are multiplied by its attention scaling (YaRN, LongRoPE); a shift must be a pure rotation, so the scaling is
left out here: it is already in the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.cache import KVCache


@dataclass(frozen=True)
class Rope:
    """One layer's rotary embedding.

    Attributes:
        inv_freq: `(rotary_dim / 2,)` radians per position, scaling of the frequencies included.
        interleaved: pairs are neighbours (GPT-J) instead of halves (GPT-NeoX, Llama).
    """

    inv_freq: Tensor
    interleaved: bool = False

    @property
    def rotary_dim(self) -> int:
        """How many of a key's leading dimensions are rotated; the rest carries no position."""
        return 2 * int(self.inv_freq.shape[0])

    def rotate(self, keys: Tensor, delta: int | Tensor) -> Tensor:
        """Turn keys `(..., T, head_dim)` by `delta` positions, a number, `(T,)` or `(..., T)`; float32 inside."""
        steps = torch.as_tensor(delta, device=keys.device, dtype=torch.float64).unsqueeze(-1)
        angle = steps * self.inv_freq.to(device=keys.device, dtype=torch.float64)
        cos, sin = angle.cos().float(), angle.sin().float()
        turned, rest = keys[..., : self.rotary_dim].float(), keys[..., self.rotary_dim :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            moved = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            moved = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return torch.cat([moved.to(keys.dtype), rest], dim=-1)


@dataclass(frozen=True)
class Fixed(Rope):
    """In place of a rotary embedding: positions that are in the keys in another way, as where they are learnt."""

    inv_freq: Tensor = field(default_factory=lambda: torch.empty(0))

    def rotate(self, keys: Tensor, delta: int | Tensor) -> Tensor:
        """Refuse; raises `PayloadError`."""
        raise PayloadError(
            "The positions of this model are no rotary embedding that is known, so its keys can't be moved.",
            fix="Use the channel 'text' where several messages meet, or a model with rotary embeddings.",
        )


def turn(tensors: Sequence[Tensor], delta: int | Sequence[Tensor], ropes: Sequence[Rope | None]) -> tuple[Tensor, ...]:
    """Keys or queries `(heads, T, head_dim)` of every layer, turned by `delta` positions.

    Args:
        delta: one number, or per layer `(T,)` or `(heads, T)`.
        ropes: one per layer; None where a layer uses no rotary embedding (nothing changes there).
    """
    steps: Sequence[int | Tensor] = [delta] * len(tensors) if isinstance(delta, int) else delta
    layers = zip(tensors, steps, ropes, strict=True)
    return tuple(x if rope is None else rope.rotate(x, by) for x, by, rope in layers)


def shift(cache: KVCache, delta: int, ropes: Sequence[Rope | None], *, rotary: int | None = None) -> KVCache:
    """The same cache `delta` positions further on: keys re-rotated, values shared.

    Args:
        ropes: one per layer, as in `turn`.
        rotary: by how many positions the keys are turned, where that is another number.
    """
    by = delta if rotary is None else rotary
    if delta == by == 0:
        return cache
    parted = cache.rotary is not None or by != delta
    return replace(
        cache,
        keys=turn(cache.keys, by, ropes),
        positions=cache.positions + delta,
        next_position=cache.next_position + delta,
        rotary=cache.rotary_positions + by if parted else None,
        _arena=None,
    )


def strip(cache: KVCache, ropes: Sequence[Rope | None]) -> tuple[Tensor, ...]:
    """Keys as they were before RoPE, per layer `(kv_heads, T, head_dim)`; what cross-model maps are fitted on."""
    return turn(cache.keys, [-cache.rotary_positions] * len(cache.keys), ropes)
