"""Calls of tools: each on a thread to itself, so that none waits for a model, and none is waited for too long."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from agentflow.errors import UserError
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Bus
from agentflow.runtime.executors.local import Detached, Ended
from agentflow.runtime.failures import kind_of
from agentflow.runtime.questions import Questions
from agentflow.runtime.records import Answer, Record
from agentflow.runtime.results import NodeResult
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.runtime.turns import Outcome
from agentflow.workflow.parts import ToolNode

AT_ONCE = 16
"""Calls under way together."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Running:
    unit: Unit
    timeout: float | None
    deadline: float


class Calls:
    """The calls of one run; used by the orchestrator's thread alone.

    A call that takes longer than its node allows is given up: Python can't stop a thread, so it is left to itself,
    and what it gives in the end is dropped.

    Args:
        cancelled: says that every call is to be let go of.
        told: is told of calls that have ended.
    """

    def __init__(
        self, binding: Binding, questions: Questions, bus: Bus, cancelled: Callable[[], bool], told: Ended
    ) -> None:
        self.binding, self.questions, self.bus, self.cancelled = binding, questions, bus, cancelled
        self._threads = Detached(told)
        self._queue = deque[tuple[Unit, ItemState]]()
        self._running = dict[Future[Outcome], _Running]()

    def add(self, unit: Unit, state: ItemState) -> None:
        """Take a unit on; it begins at once, unless too many are under way."""
        self._queue.append((unit, state))
        self._begin()

    def close(self) -> None:
        """Take no more calls."""
        self._threads.close()

    @property
    def pending(self) -> int:
        """How many calls are under way."""
        return len(self._running)

    def patience(self, longest: float) -> float:
        """Seconds until the next call has to be given up, at most `longest`."""
        first = min((call.deadline for call in self._running.values()), default=float("inf"))
        return min(longest, max(0.0, first - time.monotonic()))

    def ended(self, done: Collection[Future[Outcome]]) -> list[Outcome]:
        """What has come of those that are `done`, and of those that took too long or are called off."""
        outcomes = []
        now, off = time.monotonic(), self.cancelled()
        for future, call in list(self._running.items()):
            if future in done:
                outcomes.append(future.result())
            elif off:
                outcomes.append(Outcome(call.unit, error="cancelled"))
            elif now >= call.deadline:
                outcomes.append(Outcome(call.unit, error=f"no result within {call.timeout:g} s", kind="timeout"))
            else:
                continue
            del self._running[future]
        if off:
            outcomes += [Outcome(unit, error="cancelled") for unit, _ in self._queue]
            self._queue.clear()
        self._begin()
        return outcomes

    def _begin(self) -> None:
        while self._queue and len(self._running) < AT_ONCE:
            unit, state = self._queue.popleft()
            node = self.binding.workflow.nodes[unit.node]
            assert isinstance(node, ToolNode)
            self.bus.emit("node_started", item=unit.item, node=unit.node, child=unit.child)
            deadline = float("inf") if node.timeout is None else time.monotonic() + node.timeout
            future = self._threads.submit(partial(self._call, unit, state))
            self._running[future] = _Running(unit, node.timeout, deadline)

    def _call(self, unit: Unit, state: ItemState) -> Outcome:
        start = time.perf_counter()
        try:
            call = self.questions.call(unit, state)
        except UserError as error:
            return Outcome(unit, error=str(error), kind=kind_of(error))
        try:
            given = call.tool(call.arguments)
        except UserError as error:
            return Outcome(unit, error=str(error), kind="tool")
        except Exception as error:  # the tool's own; told to whoever wrote it
            log.info("tool %s failed", call.tool.name, exc_info=True)
            return Outcome(unit, error=f"{call.tool.name}: {type(error).__name__}: {error}", kind="tool")
        result = NodeResult.of_tool(given, time.perf_counter() - start)
        record = Record(unit, self.questions.key_of_call(call), "", result, Answer(result.text, (), "tool"))
        return Outcome(unit, record)
