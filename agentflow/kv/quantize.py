"""Caches in 8 or 4 bits, for the wire.

Keys have a few channels of large numbers that stay the same along the sequence, values have none: keys are
quantised per channel, in groups of positions, and values per token, in groups of channels (KIVI, arXiv 2402.02750,
sections 3.1-3.2). The first positions draw most of the attention and are kept as they are (attention sinks,
arXiv 2309.17453). With groups of 64 a cache of 16-bit numbers shrinks to 53 % (8 bits) and 28 % (4 bits).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.packing import Bits, Grouped, group_quantize

GROUP = 64
SINKS = 4
_STACK_BYTES = 8 << 20  # of float32 that layers quantised together take: more falls out of the CPU caches


@dataclass(frozen=True, eq=False)
class QuantizedCache:
    """A cache in few bits.

    Attributes:
        sinks: the first entries as they were, a cache of `s` positions, maybe none.
        keys, values: per layer the other `T - s` entries, `(kv_heads, T - s, dim)`.
        positions: `(T,)`, as in `KVCache`; sinks included.
        next_position: as in `KVCache`.
        bias: as in `KVCache`, not quantised.
        rotary: as in `KVCache`; sinks included.
        dtype: the number format that was quantised.
    """

    sinks: KVCache
    keys: tuple[Grouped, ...]
    values: tuple[Grouped, ...]
    positions: Tensor
    next_position: int
    bias: tuple[Tensor, ...] | None
    rotary: Tensor | None
    dtype: torch.dtype

    def __len__(self) -> int:
        return int(self.positions.shape[0])

    @property
    def bits(self) -> Bits:
        """Of a code."""
        return self.keys[0].bits

    @property
    def geometry(self) -> Geometry:
        """The shapes that a receiver must share."""
        return self.sinks.geometry

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, zero points, sinks and bias, as they would travel."""
        coded = sum(part.nbytes for part in (*self.keys, *self.values))
        return coded + self.sinks.nbytes + sum(b.nbytes for b in self.bias or ())

    @property
    def loss(self) -> str:
        """What was lost, in words, for a payload's header."""
        kept = f", first {len(self.sinks)} positions exact" if len(self.sinks) else ""
        group = self.keys[0].group
        return f"int{self.bits} keys per channel and values per token, groups of {group}{kept}"

    def dequantize(self, dtype: torch.dtype | None = None) -> KVCache:
        """The cache that the codes stand for, in `dtype` (by default that of the original)."""
        dtype = dtype or self.dtype
        sinks = self.sinks.to(dtype=dtype)
        keys = zip(sinks.keys, self.keys, strict=True)
        values = zip(sinks.values, self.values, strict=True)
        return KVCache(
            tuple(torch.cat([first, rest.restore(dtype)], dim=1) for first, rest in keys),
            tuple(torch.cat([first, rest.restore(dtype)], dim=1) for first, rest in values),
            self.positions,
            self.next_position,
            self.bias,
            self.rotary,
        )


def quantize(cache: KVCache, bits: Bits = 4, *, group: int = GROUP, sinks: int = SINKS) -> QuantizedCache:
    """Quantise a cache.

    Args:
        cache: in any floating-point format; it is not changed.
        bits: 4 or 8.
        group: positions (keys) or channels (values) that share a scale and a zero point.
        sinks: entries at positions before this one are kept as they are.

    Raises:
        PayloadError: another number of bits, a group of less than one, or a cache with numbers that aren't finite.
    """
    if bits not in (4, 8) or group < 1 or sinks < 0:
        raise PayloadError(
            f"A cache can't be quantised to {bits} bits in groups of {group} after {sinks} sinks.",
            fix="Use 4 or 8 bits, groups of at least 1 and no fewer than 0 sinks.",
        )
    exact = int(torch.searchsorted(cache.positions, sinks))
    first = KVCache(
        tuple(k[:, :exact].clone() for k in cache.keys),
        tuple(v[:, :exact].clone() for v in cache.values),
        cache.positions[:exact],
        min(sinks, cache.next_position),
    )
    keys = _stacked([k[:, exact:] for k in cache.keys], lambda x: group_quantize(x, bits, -2, group))
    values = _stacked([v[:, exact:] for v in cache.values], lambda x: group_quantize(x, bits, -1, group))
    return QuantizedCache(
        first, keys, values, cache.positions, cache.next_position, cache.bias, cache.rotary, cache.dtype
    )


def _stacked(layers: Sequence[Tensor], encode: Callable[[Tensor], Grouped]) -> tuple[Grouped, ...]:
    """`encode` neighbouring layers of one shape and device together, as many as memory allows; apart again."""
    done: list[Grouped] = []
    for first, last in pairwise(_cuts(layers)):
        block = encode(torch.stack(list(layers[first:last])))
        split = zip(block.codes, block.scale, block.zero, strict=True)
        done += [replace(block, codes=codes, scale=scale, zero=zero) for codes, scale, zero in split]
    return tuple(done)


def _cuts(layers: Sequence[Tensor]) -> list[int]:
    """Where a new stack begins, and the end."""
    cuts, size = [0], 0
    for at, layer in enumerate(layers):
        first = layers[cuts[-1]]
        size += 4 * layer.numel()
        if at > cuts[-1] and (layer.shape != first.shape or layer.device != first.device or size > _STACK_BYTES):
            cuts.append(at)
            size = 4 * layer.numel()
    return [*cuts, len(layers)]
