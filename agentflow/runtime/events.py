"""What happens in a run, as it happens. Displays and the event log both listen here; neither knows the other.

Events are small and plain: names, counts, seconds, digests. Never a tensor, never a key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "run_started",
    "model_loading",
    "model_ready",
    "node_started",
    "node_token",
    "message",
    "warning",
    "memory",
    "node_finished",
    "node_reused",
    "node_retried",
    "node_failed",
    "node_skipped",
    "loop_ended",
    "item_finished",
    "run_finished",
]


@dataclass(frozen=True)
class Event:
    """One thing that happened, `at` seconds after the run began."""

    kind: Kind
    at: float
    item: str = ""
    node: str = ""
    child: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


class Bus:
    """Hands every event to every listener, one at a time, in the order they happen."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self._start = time.perf_counter()
        self._lock = threading.Lock()

    def emit(self, kind: Kind, *, item: str = "", node: str = "", child: int | None = None, **data: Any) -> None:
        """Tell all listeners."""
        with self._lock:
            event = Event(kind, time.perf_counter() - self._start, item, node, child, data)
            for listener in self._listeners:
                listener(event)
