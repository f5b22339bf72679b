"""Runs a workflow over items: picks ready units, batches those of one model, moves their messages, keeps results."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from agentflow.errors import UserError
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.models.spec import ModelSpec
from agentflow.runtime.agent import Turnplan
from agentflow.runtime.ahead import Ahead
from agentflow.runtime.along import Along
from agentflow.runtime.binding import Binding
from agentflow.runtime.calls import Calls
from agentflow.runtime.events import Bus, Listener
from agentflow.runtime.executors.local import Ended, LocalExecutor
from agentflow.runtime.gates import Gates
from agentflow.runtime.memo import Memo
from agentflow.runtime.options import RunOptions
from agentflow.runtime.places import Places
from agentflow.runtime.results import ItemResult
from agentflow.runtime.runs import RunStore
from agentflow.runtime.scheduler import Scheduler, Unit
from agentflow.runtime.settling import Settling, first_rounds
from agentflow.runtime.state import ItemState
from agentflow.runtime.turns import Outcome, Prepared, Probe, Turns
from agentflow.workflow.meaning import Meaning
from agentflow.workflow.templates import evaluate, render_value

WINDOW = 0.005
"""Seconds that a batch waits for company while another model is at work."""
POLL = 0.2
"""Seconds after which the main thread looks up from waiting, so that Ctrl-C is heard."""


class Orchestrator:
    """One run of one workflow.

    Args:
        store: where to keep results and events; None keeps them in memory only.
        listeners: told about every event.
        memo: turns of nodes that receive nothing, shared with other runs that ask for exactly the same.
        probe: shown every turn that was generated, with the engine still at hand.
    """

    def __init__(
        self,
        binding: Binding,
        engines: EnginePool,
        *,
        options: RunOptions | None = None,
        store: RunStore | None = None,
        listeners: Sequence[Listener] = (),
        memo: Memo | None = None,
        probe: Probe | None = None,
    ) -> None:
        self.binding, self.engines, self.store = binding, engines, store
        self.options = options or RunOptions()
        self._bus = Bus(*([store] if store else []), *listeners)
        self._cancelled = threading.Event()
        self._turns = Turns(binding, engines, self.options, self._bus, store, self._cancelled.is_set, memo, probe)
        self._places = Places(binding.models.values(), self.options.per_device)
        self._order = binding.until(self.options.until)
        # A node waits for its senders, and for whatever its templates may look at: all its ancestors.
        self._parents = {node: sorted({e.sender for _, e, _ in binding.incoming(node)}) for node in self._order}
        included = set(self._order)
        self._after = {
            node: [n for n in binding.workflow.waits_for(node) if n in included and n not in self._parents[node]]
            for node in self._order
        }

    def cancel(self) -> None:
        """Stop within one decoding step; what is finished stays stored."""
        self._cancelled.set()

    def run(self, items: Sequence[tuple[str, dict[str, Any]]]) -> list[ItemResult]:
        """Run every item `(id, inputs)`; failures end what depends on them and nothing else.

        Raises:
            UserError: a model can't be loaded.
            KeyboardInterrupt: passed on after running batches have ended.
        """
        self.engines.require({self.binding.model_of(n) for n in self._order if not self.binding.is_called(n)})
        awaited = Counter(parent for parents in self._parents.values() for parent in parents)
        awaited.update(one for node in self._order for one in self.binding.workflow.layout.predecessors(node))
        states = {
            item: ItemState(item, inputs, open_nodes=set(self._order), awaited=awaited.copy()) for item, inputs in items
        }
        scheduler = Scheduler(self._order, self._parents, list(states), after=self._after)
        self._ended = Ended()
        executor = LocalExecutor(self._ended)
        self._ahead = Ahead(self._turns.prepare, executor, self.options.overlap, self.options.max_batch)
        self._along = Along(self.binding, self.engines, executor, self.options.overlap)
        asks = self._turns.questions, self._bus, self._turns.ask_remote
        self._calls = Calls(self.binding, *asks, self._cancelled.is_set, self._ended)
        gates = Gates(self.binding.workflow, self._turns.questions, self._bus)
        self._settling = Settling(
            self.binding, self._turns, self._bus, self.store, scheduler, states, self._ahead, gates
        )
        about: dict[str, Any] = {"workflow": self.binding.workflow.name, "time": time.time_ns()}
        self._bus.emit("run_started", items=len(states), nodes=len(self._order), **about)
        try:
            self._loop(scheduler, executor, states)
        except BaseException:
            self.cancel()
            raise
        finally:
            executor.shutdown()
            self._calls.close()
            results = [self._item_result(state) for state in states.values()]
            failed = sum(bool(s.errors) for s in states.values())
            self._bus.emit("run_finished", failed=failed, cancelled=self._cancelled.is_set())
            if self.store:
                self.store.save_outcome(results, cancelled=self._cancelled.is_set())
                self.store.close()
        return results

    # -- scheduling -------------------------------------------------------------------------------------

    def _loop(self, scheduler: Scheduler, executor: LocalExecutor, states: dict[str, ItemState]) -> None:
        busy: _Busy = {}
        while not scheduler.finished:
            due = self._settling.wake()
            if self._settling.failed and not self.options.keep_going:
                break
            self._gather(scheduler, busy)
            batches, waiting = self._batches(scheduler, states, set(busy.values()))
            for spec, units in batches.items():
                mine = [(unit, states[unit.item]) for unit in units]
                work = _Work(self._turns, self._ahead, self._along, self.engines, spec, mine)
                busy[executor.submit(spec, work)] = spec
            if not busy and not self._calls.pending:
                if due is not None and scheduler.peek() is None:
                    self._cancelled.wait(min(due, POLL))
                continue
            self._prepare(waiting, states, set(busy.values()))
            self._collect(busy, POLL)  # a short wait keeps the main thread open to Ctrl-C

        while busy or self._calls.pending:
            self._collect(busy, POLL)

    def _prepare(self, waiting: list[Unit], states: dict[str, ItemState], busy: set[ModelSpec]) -> None:
        """Let models that are at work have their next units prepared; one that receives nothing has little to gain."""
        receiving = [unit for unit in waiting if self._parents[unit.node]]
        for spec in busy:
            engine = self.engines.loaded(spec)
            if engine is not None:
                mine = ((u, states[u.item]) for u in receiving if self.binding.model_of(u.node) == spec)
                self._ahead.fill(spec, engine, mine)

    def _gather(self, scheduler: Scheduler, busy: _Busy) -> None:
        """Give work that is about to end a moment to add to the next batch of another model."""
        unit = scheduler.peek()
        waits = bool(busy) and self.options.max_batch > 1
        if unit is None or self.binding.is_called(unit.node):
            return
        if waits and self.binding.model_of(unit.node) not in busy.values():
            self._collect(busy, WINDOW)

    def _collect(self, busy: _Busy, timeout: float) -> None:
        """Settle what has ended, waiting at most `timeout` seconds for something to."""
        done = self._ended.wait(self._calls.patience(timeout))
        for outcome in self._calls.ended(done):
            self._settling.settle(outcome)
        for future in [future for future in busy if future in done]:
            del busy[future]
            for outcome in future.result():
                self._settling.settle(outcome)

    def _batches(
        self, scheduler: Scheduler, states: dict[str, ItemState], busy: set[ModelSpec]
    ) -> tuple[dict[ModelSpec, list[Unit]], list[Unit]]:
        """Ready units in their order, grouped by model, for models that are free; and those that wait.

        Tools and remote models are called at once.
        """
        batches: dict[ModelSpec, list[Unit]] = {}
        waiting: list[Unit] = []
        while scheduler.peek() is not None:
            unit = scheduler.take()
            state = states[unit.item]
            if not self._settling.admit(unit):
                continue
            if self.binding.workflow.nodes[unit.node].map is not None and unit.child is None:
                self._expand(scheduler, state, unit)
                continue
            if self.binding.is_called(unit.node):
                self._calls.add(unit, state)
                continue
            spec = self.binding.model_of(unit.node)
            mine = batches.get(spec, [])
            is_free = bool(mine) or (spec not in busy and self._places.has_room(spec, [*busy, *batches]))
            if is_free and len(mine) < self.options.max_batch:
                batches.setdefault(spec, mine).append(unit)
                continue
            waiting.append(unit)
            if len(waiting) > 4 * self.options.max_batch:
                break  # enough to know that nothing free is near the front
        for unit in waiting:
            scheduler.put_back(unit)
        return batches, waiting

    def _expand(self, scheduler: Scheduler, state: ItemState, unit: Unit) -> None:
        spec = self.binding.workflow.nodes[unit.node].map
        assert spec is not None
        try:
            found = spec.over
            if isinstance(found, str):
                context = self._turns.questions.context(unit.node, found, state, is_expression=True)
                found = evaluate(found, context)
            if not isinstance(found, list | tuple):
                raise UserError(f"'{unit.node}' maps over {spec.over!r}, which is no list.")
        except UserError as error:
            self._settling.settle(Outcome(unit, error=str(error), kind="template"))
            return
        state.elements[unit.node] = list(found)
        state.results.setdefault(unit.node, {})
        scheduler.expand(unit, len(state.elements[unit.node]), spec.max_concurrency)
        if not found:
            self._settling.node_done(state, unit.node)

    def _item_result(self, state: ItemState) -> ItemResult:
        nodes = {node: state.in_order(node) for node in self._order if node in state.results}
        outputs: dict[str, Any] = {}
        stopped = [Unit(state.id, node) for node in self._order if node in state.open_nodes]
        for unit in first_rounds(stopped):
            state.errors.setdefault(str(unit), "not run: the run was stopped before")
        if not state.errors and self.options.until is None:
            top, meaning = self.binding.workflow.layout.top, Meaning(state)
            try:
                outputs = {
                    name: render_value(template, meaning.context(top, None, template))
                    for name, template in self.binding.workflow.outputs.items()
                }
            except UserError as error:
                state.errors["outputs"] = str(error)
        return ItemResult(state.id, nodes, outputs, dict(state.errors), dict(state.skipped), dict(state.passed))


_Busy = dict[Future[list[Outcome]], ModelSpec]


@dataclass(frozen=True, eq=False)
class _Work:
    """A batch with its model, ready for an executor's lane; the model is loaded there when first needed."""

    turns: Turns
    ahead: Ahead
    along: Along
    engines: EnginePool
    spec: ModelSpec
    units: list[tuple[Unit, ItemState]]

    def __call__(self) -> list[Outcome]:
        engine = self.engines.get(self.spec)
        return self.turns.answer(engine, self.units, lambda: self._prepared(engine))

    def _prepared(self, engine: Engine) -> list[Prepared]:
        self.along.ended(unit.item for unit, _ in self.units)
        made = self.ahead.prepared(self.spec, engine, self.units)
        planned = [(unit, plan) for (unit, _), plan in zip(self.units, made, strict=True)]
        self.along.begin(engine, [(unit, plan.turns) for unit, plan in planned if isinstance(plan, Turnplan)])
        return made
