"""What frozen models have read: a conversation that comes again is not computed again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from agentflow.kv.cache import KVCache
from agentflow.models.engine import Engine

BUDGET = 2 << 30
"""Bytes of caches that one model's readings may hold."""


class Readings:
    """The caches of conversations in one model, the latest within a budget.

    Each is computed by itself, so that it is the same, bit by bit, in whatever batch and process it is asked for.
    """

    def __init__(self, engine: Engine, budget: int = BUDGET) -> None:
        self._engine, self._budget = engine, budget
        self._held: OrderedDict[tuple[int, ...], KVCache] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, rows: Sequence[tuple[int, ...]]) -> list[KVCache]:
        """The cache of each row of tokens, not empty."""
        return [self._one(ids) for ids in rows]

    def _one(self, ids: tuple[int, ...]) -> KVCache:
        with self._lock:
            found = self._held.get(ids)
            if found is None:
                found = self._held[ids] = self._engine.prefill(ids)
                self._bytes += found.buffer_bytes
            self._held.move_to_end(ids)
            while self._bytes > self._budget and len(self._held) > 1:
                _, oldest = self._held.popitem(last=False)
                self._bytes -= oldest.buffer_bytes
            return found
