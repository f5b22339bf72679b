"""Room to grow: buffers with spare capacity behind caches that are extended again and again.

Extending a cache by concatenation copies all of it for every turn. An arena over-allocates instead, as a list
does: the cache is a view of the first T entries, and whoever extends the *tip* writes behind it. What a holder of
an older view sees never changes, because entries are written once. A second extension of the same view (a fork)
finds the tip taken and gets an arena of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

GROWTH = 1.5
MINIMUM = 64


class Arena:
    """Per layer one buffer `(kv_heads, capacity, dim)` for keys and one for values; `used` entries are written."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], used: int) -> None:
        self.keys, self.values, self.used = keys, values, used
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """Entries the buffers can hold."""
        return int(self.keys[0].shape[1])

    def _claim(self, start: int, n: int) -> bool:
        """Take the entries `start … start+n` if they are free and follow what is written."""
        with self._lock:
            if start != self.used or start + n > self.capacity:
                return False
            self.used += n
            return True

    def first(self, n: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Views of the keys and of the values of the first `n` entries."""
        return tuple(b[:, :n] for b in self.keys), tuple(b[:, :n] for b in self.values)

    @classmethod
    def of(cls, keys: Sequence[Tensor], values: Sequence[Tensor], used: int) -> Arena:
        """A copy of `keys` and `values` in new buffers, with room behind; `used` entries count as written."""
        capacity = max(MINIMUM, int(used * GROWTH))
        return cls([_grown(k, capacity) for k in keys], [_grown(v, capacity) for v in values], used)

    @staticmethod
    def append(
        arena: Arena | None,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        new_keys: Sequence[Tensor],
        new_values: Sequence[Tensor],
    ) -> tuple[Arena, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Put `new` behind `keys, values`; returns the arena used and the views of old and new together."""
        length, n = keys[0].shape[1], new_keys[0].shape[1]
        if arena is None or not arena._claim(length, n):
            arena = Arena.of(keys, values, length + n)
        with torch.inference_mode(False), torch.no_grad():
            for buffers, news in ((arena.keys, new_keys), (arena.values, new_values)):
                for buffer, new in zip(buffers, news, strict=True):
                    buffer[:, length : length + n].copy_(new)
        return (arena, *arena.first(length + n))


def _grown(tensor: Tensor, capacity: int) -> Tensor:
    # A buffer made in inference mode could never be written outside of it, and caches outlive such a block.
    with torch.inference_mode(False), torch.no_grad():
        buffer = torch.empty((tensor.shape[0], capacity, tensor.shape[2]), dtype=tensor.dtype, device=tensor.device)
        buffer[:, : tensor.shape[1]].copy_(tensor)
    return buffer
