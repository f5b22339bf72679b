"""Runs a workflow over items: picks ready units, batches those of one model, moves their messages, keeps results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from agentflow.channels.base import Channel, Task
from agentflow.errors import UserError
from agentflow.kv.wire import write_payload
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Generation
from agentflow.models.spec import ModelSpec
from agentflow.runtime.agent import Delivery, Turnplan, close_turn, deliver, plan_turn
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Bus, Listener
from agentflow.runtime.executors.local import LocalExecutor
from agentflow.runtime.memo import Memo
from agentflow.runtime.results import ItemResult, NodeResult
from agentflow.runtime.runs import RunStore
from agentflow.runtime.scheduler import Scheduler, Unit
from agentflow.runtime.state import ItemState
from agentflow.workflow.graph import build_graph, topological_order
from agentflow.workflow.templates import evaluate, render, render_value

Probe = Callable[[Unit, Engine, Turnplan, Generation], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run.

    Attributes:
        seed: every unit's own seed is derived from it, its item, node and child.
        max_batch: units of one model that are answered as one batch.
        reuse: look for token prefixes that were computed before, also by other nodes. Off in comparisons, where
            every receiver must pay for what it is sent.
        keep_payloads: write every payload into the run's folder.
        signing_key: signs them.
    """

    seed: int = 0
    max_batch: int = 8
    reuse: bool = True
    keep_payloads: bool = False
    signing_key: bytes | None = None


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
        self._memo, self._probe = memo, probe
        self._bus = Bus(*([store] if store else []), *listeners)
        self._cancelled = threading.Event()
        workflow = binding.workflow
        self._order = topological_order(build_graph(workflow))
        # A node waits for its senders, and for whatever its templates may look at: all its ancestors.
        self._parents = {node: sorted({e.sender for e, _ in binding.incoming(node)}) for node in self._order}
        self._numbers = {id(edge): number for number, edge in enumerate(workflow.edges)}

    def cancel(self) -> None:
        """Stop within one decoding step; what is finished stays stored."""
        self._cancelled.set()

    def run(self, items: Sequence[tuple[str, dict[str, Any]]]) -> list[ItemResult]:
        """Run every item `(id, inputs)`; failures end what depends on them and nothing else.

        Raises:
            UserError: a model can't be loaded.
            KeyboardInterrupt: passed on after running batches have ended.
        """
        states = {item: ItemState(item, inputs, open_nodes=set(self._order)) for item, inputs in items}
        scheduler = Scheduler(self._order, self._parents, list(states))
        executor = LocalExecutor()
        self._bus.emit("run_started", items=len(states), nodes=len(self._order), workflow=self.binding.workflow.name)
        try:
            self._loop(scheduler, executor, states)
        except BaseException:
            self.cancel()
            raise
        finally:
            executor.shutdown()
            failed = sum(bool(s.errors) for s in states.values())
            self._bus.emit("run_finished", failed=failed, cancelled=self._cancelled.is_set())
            if self.store:
                self.store.close()
        return [self._item_result(state) for state in states.values()]

    # -- scheduling -------------------------------------------------------------------------------------

    def _loop(self, scheduler: Scheduler, executor: LocalExecutor, states: dict[str, ItemState]) -> None:
        busy: dict[Future[list[_Outcome]], ModelSpec] = {}
        while not scheduler.finished:
            for spec, units in self._batches(scheduler, states, set(busy.values())):
                work = _Work(self, spec, [(unit, states[unit.item]) for unit in units])
                busy[executor.submit(spec, work)] = spec
            if not busy:
                continue
            # A short wait keeps the main thread open to Ctrl-C.
            done, _ = wait(busy, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                del busy[future]
                for outcome in future.result():
                    self._settle(scheduler, states[outcome.unit.item], outcome)

    def _batches(
        self, scheduler: Scheduler, states: dict[str, ItemState], busy: set[ModelSpec]
    ) -> list[tuple[ModelSpec, list[Unit]]]:
        """Ready units in their order, grouped by model, for models that are free."""
        batches: dict[ModelSpec, list[Unit]] = {}
        waiting: list[Unit] = []
        while scheduler.peek() is not None:
            unit = scheduler.take()
            state = states[unit.item]
            if self.binding.workflow.nodes[unit.node].map is not None and unit.child is None:
                self._expand(scheduler, state, unit)
                continue
            spec = self.binding.model_of(unit.node)
            if spec in busy or len(batches.get(spec, ())) >= self.options.max_batch:
                waiting.append(unit)
                if len(waiting) > 4 * self.options.max_batch:
                    break  # enough to know that nothing free is near the front
            else:
                batches.setdefault(spec, []).append(unit)
        for unit in waiting:
            scheduler.put_back(unit)
        return list(batches.items())

    def _expand(self, scheduler: Scheduler, state: ItemState, unit: Unit) -> None:
        spec = self.binding.workflow.nodes[unit.node].map
        assert spec is not None
        try:
            found = spec.over if isinstance(spec.over, list) else evaluate(spec.over, state.template_context())
            if not isinstance(found, list | tuple):
                raise UserError(f"'{unit.node}' maps over {spec.over!r}, which is no list.")
        except UserError as error:
            self._settle(scheduler, state, _Outcome(unit, error=str(error)))
            return
        state.elements[unit.node] = list(found)
        state.results.setdefault(unit.node, {})
        scheduler.expand(unit, len(state.elements[unit.node]))
        if not found:
            self._node_done(state, unit.node)

    def _settle(self, scheduler: Scheduler, state: ItemState, outcome: _Outcome) -> None:
        unit = outcome.unit
        if outcome.result is None:
            state.errors[str(unit)] = outcome.error
            self._bus.emit("node_failed", item=unit.item, node=unit.node, child=unit.child, error=outcome.error)
            for skipped in scheduler.fail(unit):
                state.errors[str(skipped)] = f"skipped: '{unit.node}' failed"
                self._bus.emit("node_skipped", item=skipped.item, node=skipped.node, because=unit.node)
                self._node_done(state, skipped.node)
            self._node_done(state, unit.node)
            return
        state.results.setdefault(unit.node, {})[unit.child or 0] = outcome.result
        if self.store:
            self.store.save_result(unit, outcome.result)
        self._bus.emit("node_finished", item=unit.item, node=unit.node, child=unit.child, **outcome.result.to_json())
        if scheduler.finish(unit):
            self._node_done(state, unit.node)

    def _node_done(self, state: ItemState, node: str) -> None:
        """Forget messages that nobody waits for any more; tell when the item is through."""
        state.open_nodes.discard(node)
        for sender in list(state.messages):
            if not any(edge.receiver in state.open_nodes for edge, _ in self.binding.outgoing(sender)):
                del state.messages[sender]
                gone = {self._numbers[id(e)] for e, _ in self.binding.outgoing(sender)}
                state.payloads = {key: p for key, p in state.payloads.items() if key[0] not in gone}
        if not state.open_nodes:
            self._bus.emit("item_finished", item=state.id, failed=bool(state.errors))

    def _item_result(self, state: ItemState) -> ItemResult:
        nodes = {node: state.in_order(node) for node in self._order if node in state.results}
        outputs: dict[str, Any] = {}
        if not state.errors and not state.open_nodes:
            context = state.template_context()
            try:
                outputs = {name: render_value(t, context) for name, t in self.binding.workflow.outputs.items()}
            except UserError as error:
                state.errors["outputs"] = str(error)
        return ItemResult(state.id, nodes, outputs, dict(state.errors))

    # -- one batch, on its engine's thread ---------------------------------------------------------------

    def run_batch(self, engine: Engine, units: Sequence[tuple[Unit, ItemState]]) -> list[_Outcome]:
        """Answer units of one model as one batch; each may fail on its own."""
        outcomes: list[_Outcome] = []
        plans: list[tuple[Unit, ItemState, Turnplan]] = []
        for unit, state in units:
            self._bus.emit("node_started", item=unit.item, node=unit.node, child=unit.child)
            try:
                plans.append((unit, state, self._plan(engine, unit, state)))
            except UserError as error:
                outcomes.append(_Outcome(unit, error=str(error)))
            except Exception as error:
                log.exception("unit %s failed", unit)
                outcomes.append(_Outcome(unit, error=f"{type(error).__name__}: {error}"))
        try:
            answers = self._answers(engine, [plan for _, _, plan in plans])
        except Exception as error:
            log.exception("a batch of %d units failed", len(plans))
            return [
                *outcomes,
                *(_Outcome(unit, error=f"{type(error).__name__}: {error}") for unit, _, _ in plans),
            ]
        for (unit, state, plan), answer in zip(plans, answers, strict=True):
            if answer.finish == "cancelled":
                outcomes.append(_Outcome(unit, error="cancelled"))
                continue
            result, message = close_turn(unit.node, engine, plan, answer)
            if self._probe is not None:
                self._probe(unit, engine, plan, answer)
            if self.binding.outgoing(unit.node):
                state.messages.setdefault(unit.node, {})[unit.child or 0] = message
            outcomes.append(_Outcome(unit, result))
        return outcomes

    def _answers(self, engine: Engine, plans: Sequence[Turnplan]) -> list[Generation]:
        """Generate; turns that stand on nothing are looked up in the memo first."""
        found = [self._memo.find(engine, plan) if self._memo is not None else None for plan in plans]
        missing = [plan for plan, answer in zip(plans, found, strict=True) if answer is None]
        fresh = iter(engine.generate([plan.request for plan in missing]))
        answers = []
        for plan, answer in zip(plans, found, strict=True):
            made = answer if answer is not None else next(fresh)
            if answer is None and self._memo is not None:
                self._memo.add(engine, plan, made)
            answers.append(made)
        return answers

    def _plan(self, engine: Engine, unit: Unit, state: ItemState) -> Turnplan:
        workflow = self.binding.workflow
        node = workflow.nodes[unit.node]
        context = state.template_context()
        if node.map is not None and unit.child is not None:
            context |= {node.map.item: state.elements[unit.node][unit.child], "index": unit.child}
        prompt = render(node.prompt, context)
        system = workflow.agents[node.agent].system
        task = Task(prompt, system, engine)
        deliveries = [
            d
            for edge, channel in self.binding.incoming(unit.node)
            for d in self._receive(unit, state, edge.sender, self._numbers[id(edge)], channel, task)
        ]
        return plan_turn(
            engine,
            system=system,
            prompt=prompt,
            deliveries=deliveries,
            settings=workflow.effective(unit.node),
            seed=self._seed(unit),
            keep_cache=self._keeps_cache(unit.node),
            reuse=self.options.reuse,
            cancelled=self._cancelled.is_set,
            on_token=self._speaker(unit),
        )

    def _keeps_cache(self, node: str) -> bool:
        """Whether somebody stands on this node's cache: a receiver, the next run (memo), or the probe."""
        if self._memo is not None or self._probe is not None:
            return True
        return any(channel.needs_cache for _, channel in self.binding.outgoing(node))

    def _receive(
        self, unit: Unit, state: ItemState, sender: str, number: int, channel: Channel, task: Task
    ) -> list[Delivery]:
        """What the sender's children (or the one sender) have for this unit."""
        found = []
        for child, message in sorted(state.messages.get(sender, {}).items()):
            known = state.payloads.get((number, child)) if channel.task_free else None
            payload, delivery = deliver(channel, message, task, known)
            if channel.task_free:
                state.payloads[number, child] = payload
            digest = ""
            if self.store and self.options.keep_payloads and known is None:
                path = self.store.payload_path(f"{unit}-{number}-{child}")
                digest = write_payload(payload, path, key=self.options.signing_key)
            self._bus.emit(
                "message",
                item=unit.item,
                node=unit.node,
                child=unit.child,
                sender=sender,
                channel=channel.name,
                bytes=delivery.result.bytes,
                digest=digest,
            )
            found.append(delivery)
        return found

    def _speaker(self, unit: Unit) -> Callable[[str], None]:
        return lambda text: self._bus.emit("node_token", item=unit.item, node=unit.node, child=unit.child, text=text)

    def _seed(self, unit: Unit) -> int:
        return int.from_bytes(blake3(f"{self.options.seed}/{unit}".encode()).digest()[:7], "big")


@dataclass(frozen=True)
class _Outcome:
    unit: Unit
    result: NodeResult | None = None
    error: str = ""


@dataclass(frozen=True, eq=False)
class _Work:
    """A batch with its model, ready for an executor's lane; the model is loaded there when first needed."""

    orchestrator: Orchestrator
    spec: ModelSpec
    units: list[tuple[Unit, ItemState]]

    def __call__(self) -> list[_Outcome]:
        return self.orchestrator.run_batch(self.orchestrator.engines.get(self.spec), self.units)
