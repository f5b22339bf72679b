"""Calls of tools and of remote models: each on a thread to itself, so that none waits for another, or for an engine."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from agentflow.errors import UserError
from agentflow.models.spec import ModelSpec
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
"""Calls of tools under way together; of a remote model, as many as its `max_concurrency` says."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Running:
    unit: Unit
    model: ModelSpec | None
    timeout: float | None
    deadline: float


class Calls:
    """The calls of one run; used by the orchestrator's thread alone.

    A call that takes longer than its node allows is given up: Python can't stop a thread, so it is left to itself,
    and what it gives in the end is dropped.

    Args:
        ask_remote: answers a unit whose model is served elsewhere.
        cancelled: says that every call is to be let go of.
        told: is told of calls that have ended.
    """

    def __init__(
        self,
        binding: Binding,
        questions: Questions,
        bus: Bus,
        ask_remote: Callable[[Unit, ItemState], Outcome],
        cancelled: Callable[[], bool],
        told: Ended,
    ) -> None:
        self.binding, self.questions, self.bus, self.cancelled = binding, questions, bus, cancelled
        self._ask_remote = ask_remote
        self._threads = Detached(told)
        self._queues = dict[ModelSpec | None, deque[tuple[Unit, ItemState]]]()  # None: of tools
        self._running = dict[Future[Outcome], _Running]()

    def add(self, unit: Unit, state: ItemState) -> None:
        """Take a unit on; it begins at once, unless too many are under way."""
        model = None if unit.node in self.binding.tools else self.binding.model_of(unit.node)
        self._queues.setdefault(model, deque()).append((unit, state))
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
            outcomes += [Outcome(unit, error="cancelled") for queue in self._queues.values() for unit, _ in queue]
            self._queues.clear()
        self._begin()
        return outcomes

    def _begin(self) -> None:
        under_way = Counter(call.model for call in self._running.values())
        for model, queue in self._queues.items():
            most = model.remote.max_concurrency if model is not None and model.remote is not None else AT_ONCE
            while queue and under_way[model] < most:
                under_way[model] += 1
                self._start(model, *queue.popleft())

    def _start(self, model: ModelSpec | None, unit: Unit, state: ItemState) -> None:
        node = self.binding.workflow.nodes[unit.node]
        if not isinstance(node, ToolNode):  # a remote model minds its own time
            future = self._threads.submit(partial(self._ask_remote, unit, state))
            self._running[future] = _Running(unit, model, None, float("inf"))
            return
        self.bus.emit("node_started", item=unit.item, node=unit.node, child=unit.child)
        deadline = float("inf") if node.timeout is None else time.monotonic() + node.timeout
        future = self._threads.submit(partial(self._call, unit, state))
        self._running[future] = _Running(unit, model, node.timeout, deadline)

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
