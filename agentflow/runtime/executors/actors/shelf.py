"""Which caches lie in the object store already, so that each is put there once, whoever stands on it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from agentflow.kv.cache import KVCache
from agentflow.runtime.executors.actors.views import Shipped


@dataclass(frozen=True, eq=False)
class Held:
    """A cache in the object store: an object, and how much of it is meant."""

    ref: Any
    before: int


class Shelf:
    """Objects of caches that were used last.

    A cache is known by where its first keys lie; it is held for as long as it is known, so nothing else can lie there.

    Args:
        max_bytes: of the caches that are held.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._known: OrderedDict[int, tuple[KVCache, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0

    def hold(self, cache: KVCache) -> Held:
        """The object of a cache, or of a longer one that it is the beginning of; put there where there is none."""
        import ray

        with self._lock:
            known = self._known.get(_place(cache))
            if known is not None and is_beginning(cache, known[0]):
                self._known.move_to_end(_place(cache))
                return Held(known[1], cache.next_position)
        ref = ray.put(Shipped.of(cache))
        self.keep(cache, ref)
        return Held(ref, cache.next_position)

    def keep(self, cache: KVCache, ref: Any) -> None:
        """Remember an object of a cache."""
        if not len(cache):
            return
        with self._lock:
            self._drop(_place(cache))
            self._known[_place(cache)] = cache, ref
            self._bytes += cache.nbytes
            while self._bytes > self.max_bytes and len(self._known) > 1:
                self._drop(next(iter(self._known)))

    def clear(self) -> None:
        """Forget all of them: an object was lost, and what we hold is put there again."""
        with self._lock:
            self._known.clear()
            self._bytes = 0

    def _drop(self, place: int) -> None:
        known = self._known.pop(place, None)
        if known is not None:
            self._bytes -= known[0].nbytes


def _place(cache: KVCache) -> int:
    return cache.keys[0].data_ptr()


def is_beginning(part: KVCache, whole: KVCache) -> bool:
    """Whether `part` is `whole.before(part.next_position)`, in the very same memory."""
    if part is whole:
        return True
    cut = whole.before(part.next_position)
    if cut.next_position != part.next_position or len(cut) != len(part) or cut.geometry != part.geometry:
        return False
    mine, theirs = ((*c.keys, *c.values, *(c.bias or ())) for c in (part, cut))
    if len(mine) != len(theirs) or any(a.data_ptr() != b.data_ptr() for a, b in zip(mine, theirs, strict=True)):
        return False
    if any(a.stride() != b.stride() or a.dtype != b.dtype for a, b in zip(mine, theirs, strict=True)):
        return False
    return torch.equal(part.positions, cut.positions) and torch.equal(part.rotary_positions, cut.rotary_positions)
