"""What follows from a unit's end: its result is kept, or it is tried again, left out, or replaced."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from agentflow.errors import UserError
from agentflow.runtime.ahead import Ahead
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Bus
from agentflow.runtime.gates import Gates
from agentflow.runtime.records import Record
from agentflow.runtime.results import NodeResult
from agentflow.runtime.runs import RunStore
from agentflow.runtime.scheduler import Scheduler, Unit
from agentflow.runtime.state import ItemState
from agentflow.runtime.turns import Outcome, Turns
from agentflow.workflow.frames import address
from agentflow.workflow.parts import ErrorKind


@dataclass(eq=False)
class Settling:
    """Settles the units of one run; used by the orchestrator's thread alone.

    Attributes:
        failed: whether a unit has failed for good.
    """

    binding: Binding
    turns: Turns
    bus: Bus
    store: RunStore | None
    scheduler: Scheduler
    states: dict[str, ItemState]
    ahead: Ahead
    gates: Gates
    failed: bool = False
    _later: list[tuple[float, Unit]] = field(default_factory=list)
    _admitted: set[Unit] = field(default_factory=set)

    def admit(self, unit: Unit) -> bool:
        """Whether a unit that was taken has to run; if not, it is settled here: left out, or finished before."""
        if unit in self._admitted:
            return True  # it was put back, and has come by again
        state, node = self.states[unit.item], self.binding.workflow.nodes[unit.node]
        if unit.child is None and not self._is_open(unit, state):
            return False
        is_whole_map = node.map is not None and unit.child is None
        record = None if is_whole_map else self.turns.stored(unit, state)
        if record is None:
            self._admitted.add(unit)
            return True
        self._finished(record, "node_reused")
        return False

    def settle(self, outcome: Outcome) -> None:
        """Take in what became of a unit that ran."""
        unit, record = outcome.unit, outcome.record
        if record is not None:
            self._finished(record, "node_finished")
            return
        node, state = self.binding.workflow.nodes[unit.node], self.states[unit.item]
        if outcome.kind is None:  # called off
            self._fail(unit, outcome.error, "cancelled")
            return
        state.failures[unit.node, unit.child] += 1
        failed = state.failures[unit.node, unit.child]
        wait = node.retry.seconds(outcome.kind, failed) if node.retry else None
        if wait is not None:
            heapq.heappush(self._later, (time.monotonic() + wait, unit))
            what = {"error": outcome.error, "type": outcome.kind, "attempt": failed + 1, "wait": wait}
            self.bus.emit("node_retried", item=unit.item, node=unit.node, child=unit.child, **what)
        elif node.on_error.action == "skip":
            self._leave_out(unit, outcome.error)
        elif node.on_error.action == "fallback":
            self._fall_back(unit, state, outcome.error)
        else:
            self._fail(unit, outcome.error, outcome.kind)

    def wake(self) -> float | None:
        """Give units whose wait is over back to the scheduler; seconds to the next one, None where none waits."""
        while self._later and self._later[0][0] <= time.monotonic():
            self.scheduler.put_back(heapq.heappop(self._later)[1])
        return max(0.0, self._later[0][0] - time.monotonic()) if self._later else None

    def node_done(self, state: ItemState, node: str) -> None:
        """Forget messages that nobody waits for any more; tell when the item is through."""
        if node not in state.open_nodes:  # a second child of a map that has failed, or a late one
            state.forget(node)
            return
        state.open_nodes.discard(node)
        self.ahead.forget(state.id, node)
        earlier = self.binding.workflow.layout.predecessors(node)
        senders = [state.source(name) for name in (*(e.sender for _, e, _ in self.binding.incoming(node)), *earlier)]
        if node in state.passed:  # what waits for it waits for the node that stands for it
            state.awaited[state.source(node)] += state.awaited.pop(node, 0)
        for sender in senders:
            state.awaited[sender] -= 1
        state.forget(node, *senders)
        if not state.open_nodes:
            self.bus.emit("item_finished", item=state.id, failed=bool(state.errors))

    # -- inside -----------------------------------------------------------------------------------------

    def _is_open(self, unit: Unit, state: ItemState) -> bool:
        """Ask the conditions of a node; where they say no, or can't be evaluated, the unit is settled."""
        try:
            closed = self.gates.closed(unit, state)
        except UserError as error:
            self.settle(Outcome(unit, error=str(error), kind="template"))
            return False
        if closed is not None and closed.ended:
            self._pass_on(unit, state)
        elif closed is not None:
            self._leave_out(unit, closed.reason)
        return closed is None

    def _pass_on(self, unit: Unit, state: ItemState) -> None:
        """Let an earlier round stand for a node whose loop has ended."""
        if state.results.get(state.source(unit.node)):
            self.scheduler.finish(unit)
            self.node_done(state, unit.node)
        else:
            self._close(unit, state)  # it was left out there

    def _finished(self, record: Record, kind: Literal["node_finished", "node_reused"]) -> None:
        unit, state = record.unit, self.states[record.unit.item]
        state.take(record)
        resumed = self.store is not None and self.store.resumed
        if resumed or record.answer.finish in ("fallback", "tool"):  # a message may have to be made from it
            state.answers.setdefault(unit.node, {})[unit.child or 0] = record.answer
        if kind == "node_finished" and self.store is not None and record.key:
            self.store.save(record)
        self.bus.emit(kind, item=unit.item, node=unit.node, child=unit.child, **record.result.to_json())
        if self.scheduler.finish(unit) or unit.node not in state.open_nodes:
            self.node_done(state, unit.node)

    def _fail(self, unit: Unit, error: str, kind: ErrorKind | Literal["cancelled"]) -> None:
        self.failed = True
        state = self.states[unit.item]
        state.errors[str(unit)] = error
        self.bus.emit("node_failed", item=unit.item, node=unit.node, child=unit.child, error=error, type=kind)
        left_out = self.scheduler.fail(unit)
        for skipped in first_rounds(left_out):
            state.errors[str(skipped)] = f"skipped: '{unit.node}' failed"
            self._tell_skipped(skipped, f"'{unit.node}' failed")
        for skipped in left_out:
            self.node_done(state, skipped.node)
        self.node_done(state, unit.node)

    def _leave_out(self, unit: Unit, reason: str) -> None:
        """Leave a unit out: a child of a map says nothing, a whole node takes along what hears nobody else."""
        state = self.states[unit.item]
        state.skipped[str(unit)] = reason
        self._tell_skipped(unit, reason)
        if unit.child is not None:
            state.results.setdefault(unit.node, {})[unit.child] = NodeResult.unspoken("", "skipped")
            if self.scheduler.finish(unit):
                self.node_done(state, unit.node)
            return
        self._close(unit, state)

    def _close(self, unit: Unit, state: ItemState) -> None:
        left_out = self.scheduler.skip(unit)
        for other in first_rounds(left_out):
            state.skipped[str(other)] = why = f"hears nobody: '{unit.node}' was skipped"
            self._tell_skipped(other, why)
        for other in (unit, *left_out):
            state.results[other.node] = {}
            self.node_done(state, other.node)

    def _fall_back(self, unit: Unit, state: ItemState, error: str) -> None:
        try:
            record = self.turns.fallback(unit, state)
        except UserError as second:
            self._fail(unit, f"{error} Its fallback failed as well: {second}", "template")
            return
        self.bus.emit(
            "warning", item=unit.item, node=unit.node, child=unit.child, sender=unit.node, text=f"fallback: {error}"
        )
        self._finished(record, "node_finished")

    def _tell_skipped(self, unit: Unit, reason: str) -> None:
        self.bus.emit("node_skipped", item=unit.item, node=unit.node, child=unit.child, because=reason)


def first_rounds(units: Iterable[Unit]) -> list[Unit]:
    """The units without those that are the same node in another round: of a thousand rounds one is told."""
    return list({(unit.item, address(unit.node)): unit for unit in reversed(list(units))}.values())[::-1]
