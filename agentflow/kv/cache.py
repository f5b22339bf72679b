"""The key-value cache every channel speaks.

A `KVCache` is one sequence's attention state: per layer the keys (after RoPE) and values of the positions that
are kept. It is immutable: operations return new caches and share memory where they can. Positions are explicit
because a compacted cache has holes: entry `i` is token `positions[i]` of its sequence, and the next token is
`next_position`, however few entries are left. Once such holes have been closed, where a token stands in its sequence
and how far RoPE has turned its key are two things: `rotary` says the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.arena import Arena
from agentflow.kv.geometry import Geometry
from agentflow.kv.selection import entry_numbers

__all__ = ["Geometry", "KVCache"]


@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values of one sequence.

    Attributes:
        keys: per layer `(kv_heads, T, key_dim)`, after RoPE.
        values: per layer `(kv_heads, T, value_dim)`.
        positions: `(T,)` int64, strictly increasing: the original position of each entry.
        next_position: the position the next token takes; greater than every entry of `positions`.
        bias: per layer `(kv_heads, T)`, added to the attention logits of these keys (β of Attention Matching,
            arXiv 2602.16284), or None for zero everywhere.
        rotary: `(T,)` int64, strictly increasing: the positions that RoPE has turned the keys to, or None where these
            are `positions`. The next token is then turned to the place right behind the last entry.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    positions: Tensor
    next_position: int
    bias: tuple[Tensor, ...] | None = None
    rotary: Tensor | None = None
    _arena: Arena | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values) or not self.keys:
            raise PayloadError(
                f"A cache needs keys and values of the same layers, got {len(self.keys)} and {len(self.values)}."
            )
        length = self.positions.shape[0]
        for layer, (k, v) in enumerate(zip(self.keys, self.values, strict=True)):
            if k.ndim != 3 or v.ndim != 3 or k.shape[:2] != v.shape[:2] or k.shape[1] != length:
                raise PayloadError(
                    f"Layer {layer} of a cache does not fit its {length} positions: "
                    f"keys {tuple(k.shape)}, values {tuple(v.shape)}."
                )
        if self.bias is not None and [tuple(b.shape) for b in self.bias] != [tuple(k.shape[:2]) for k in self.keys]:
            raise PayloadError("The bias of a cache must have one number for each KV head and position.")
        if self.rotary is not None and self.rotary.shape != self.positions.shape:
            raise PayloadError(f"A cache of {length} positions has {self.rotary.numel()} rotary ones.")

    def __len__(self) -> int:
        return int(self.positions.shape[0])

    @property
    def geometry(self) -> Geometry:
        """The shapes that a receiver must share."""
        pairs = zip(self.keys, self.values, strict=True)
        return Geometry(tuple((k.shape[0], k.shape[2], v.shape[2]) for k, v in pairs))

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the keys."""
        return self.keys[0].dtype

    @property
    def device(self) -> torch.device:
        """Where the first layer lies (a model on several devices keeps each layer on its own)."""
        return self.keys[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and bias, as they would travel."""
        tensors = (*self.keys, *self.values, *(self.bias or ()))
        return sum(t.numel() * t.element_size() for t in tensors)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers behind the views, spare capacity included: what holding this cache holds."""
        return sum(t.untyped_storage().nbytes() for t in (*self.keys, *self.values, *(self.bias or ())))

    @property
    def rotary_positions(self) -> Tensor:
        """`(T,)` the positions that the keys are turned to."""
        return self.positions if self.rotary is None else self.rotary

    @property
    def next_rotary(self) -> int:
        """The position that the next token's key is turned to."""
        if self.rotary is None:
            return self.next_position
        return int(self.rotary[-1]) + 1 if len(self) else 0

    @property
    def contiguous(self) -> bool:
        """Whether every position from 0 to `next_position` is kept, unbiased: nothing was compacted away."""
        return len(self) == self.next_position and self.bias is None

    def select(self, index: Tensor) -> KVCache:
        """Keep the entries at `index`, in ascending order; positions and the next position stay.

        Args:
            index: `(n,)` distinct entry numbers in any order, or a mask `(T,)` of booleans.

        Raises:
            PayloadError: an entry is named twice or does not exist, or the mask has another length.
        """
        index = entry_numbers(index, len(self))

        def pick(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(t.index_select(1, index.to(t.device)) for t in tensors)

        at = index.to(self.positions.device)
        return replace(
            self,
            keys=pick(self.keys),
            values=pick(self.values),
            positions=self.positions[at],
            bias=None if self.bias is None else pick(self.bias),
            rotary=None if self.rotary is None else self.rotary[at],
            _arena=None,
        )

    def before(self, position: int) -> KVCache:
        """The part that stands before `position`, as views; the next token then takes `position`."""
        if position < 0:
            raise PayloadError(f"Positions start at 0: nothing stands before {position}.")
        if position >= self.next_position:
            return self
        n = int(torch.searchsorted(self.positions, position))
        return replace(
            self,
            keys=tuple(k[:, :n] for k in self.keys),
            values=tuple(v[:, :n] for v in self.values),
            positions=self.positions[:n],
            next_position=position,
            bias=None if self.bias is None else tuple(b[:, :n] for b in self.bias),
            rotary=None if self.rotary is None else self.rotary[:n],
        )

    def since(self, position: int) -> KVCache:
        """The part that stands at `position` and behind it; itself from 0 on."""
        return self if position == 0 else self.select(self.positions >= position)

    def copied(self) -> KVCache:
        """The same entries in memory of its own, with room behind them: to be written before anyone else has it."""
        arena = Arena.of(self.keys, self.values, len(self))
        keys, values = arena.first(len(self))
        return replace(self, keys=keys, values=values, _arena=arena)

    def blanked(self) -> KVCache:
        """The same positions, every key and value zero."""
        keys, values = (tuple(torch.zeros_like(t) for t in part) for part in (self.keys, self.values))
        return replace(self, keys=keys, values=values, _arena=None)

    def extend(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> KVCache:
        """Append freshly computed entries at the next positions: per layer `(kv_heads, n, dim)`.

        Amortised without copying what is there (see `Arena`); this cache stays as it is. The new entries are
        detached: no gradient flows through them.

        Raises:
            PayloadError: layers, heads, widths or lengths differ from this cache's.
        """
        n = keys[0].shape[1] if keys else 0
        wanted = [(heads, n, key_dim, value_dim) for heads, key_dim, value_dim in self.geometry.layers]
        given = [(*k.shape, v.shape[2]) for k, v in zip(keys, values, strict=False) if k.shape[:2] == v.shape[:2]]
        if given != wanted or len(keys) != len(values):  # a copy into the arena would broadcast them
            raise PayloadError(f"New entries of other shapes can't extend a cache of {self.geometry}.")
        if n == 0:
            return self
        arena, all_keys, all_values = Arena.append(self._arena, self.keys, self.values, keys, values)
        new = torch.arange(n, device=self.positions.device)
        bias = None
        if self.bias is not None:
            bias = tuple(torch.cat([b, b.new_zeros(b.shape[0], n)], dim=1) for b in self.bias)
        positions = torch.cat([self.positions, new + self.next_position])
        rotary = None if self.rotary is None else torch.cat([self.rotary, new + self.next_rotary])
        return KVCache(all_keys, all_values, positions, self.next_position + n, bias, rotary, arena)

    def followed_by(self, other: KVCache) -> KVCache:
        """Join two caches whose positions already follow each other (see `rope.shift` for moving one)."""
        if other.geometry != self.geometry:
            raise PayloadError(f"Caches of different shapes can't be joined: {self.geometry} and {other.geometry}.")
        start = int(other.positions[0]) if len(other) else other.next_position
        if start < self.next_position:
            raise PayloadError(
                f"The second cache starts at position {start}, inside the first, which ends before "
                f"{self.next_position}.",
                fix="Shift it first (kv.rope.shift).",
            )
        bias = None
        if self.bias is not None or other.bias is not None:
            bias = tuple(
                torch.cat([a, b.to(a)], dim=1) for a, b in zip(self.bias_or_zero(), other.bias_or_zero(), strict=True)
            )
        rotary = None
        if self.rotary is not None or other.rotary is not None:
            rotary = torch.cat([self.rotary_positions, other.rotary_positions.to(self.positions.device)])
        return KVCache(
            tuple(torch.cat([a, b.to(a)], dim=1) for a, b in zip(self.keys, other.keys, strict=True)),
            tuple(torch.cat([a, b.to(a)], dim=1) for a, b in zip(self.values, other.values, strict=True)),
            torch.cat([self.positions, other.positions.to(self.positions.device)]),
            other.next_position,
            bias,
            rotary,
        )

    def bias_or_zero(self) -> tuple[Tensor, ...]:
        """The bias, or zeros `(kv_heads, T)` per layer where there is none."""
        return self.bias or tuple(k.new_zeros(k.shape[:2], dtype=torch.float32) for k in self.keys)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> KVCache:
        """The same cache on another device or in another number format; itself where nothing changes."""
        target = torch.device(device) if device is not None else None
        keys = tuple(k.to(device=target, dtype=dtype) for k in self.keys)
        values = tuple(v.to(device=target, dtype=dtype) for v in self.values)
        bias = None if self.bias is None else tuple(b.to(device=target) for b in self.bias)
        positions = self.positions.to(device=target)
        before, after = (*self.keys, *self.values, *(self.bias or ())), (*keys, *values, *(bias or ()))
        if positions is self.positions and all(a is b for a, b in zip(before, after, strict=True)):
            return self  # with its arena: a cache that is moved for every turn would otherwise be copied for each
        rotary = None if self.rotary is None else self.rotary.to(device=target)
        return KVCache(keys, values, positions, self.next_position, bias, rotary)

    @classmethod
    def stacked(cls, keys: Sequence[Tensor], values: Sequence[Tensor], start: int = 0) -> KVCache:
        """A cache of consecutive positions from `start`, of per-layer tensors `(kv_heads, T, dim)`."""
        length = keys[0].shape[1]
        positions = torch.arange(start, start + length, device=keys[0].device)
        return cls(tuple(keys), tuple(values), positions, start + length)
