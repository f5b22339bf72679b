"""One batch of turns on one engine: plan each, generate all together, close each; each may fail on its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from agentflow.channels.base import Channel, Task
from agentflow.errors import UserError
from agentflow.kv.wire import write_payload
from agentflow.models.engine import Engine
from agentflow.models.requests import Generation
from agentflow.runtime.agent import Delivery, Turnplan, close_turn, deliver, plan_turn
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Bus
from agentflow.runtime.memo import Memo
from agentflow.runtime.options import RunOptions
from agentflow.runtime.results import NodeResult
from agentflow.runtime.runs import RunStore
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.workflow.templates import render

Probe = Callable[[Unit, Engine, Turnplan, Generation], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of a unit: a result, or an error in words."""

    unit: Unit
    result: NodeResult | None = None
    error: str = ""


Prepared = Turnplan | Outcome
"""A turn that is ready to be generated, or what became of it before."""


@dataclass(frozen=True, eq=False)
class Turns:
    """Prepares and answers units; batches are answered on an engine's own thread.

    Attributes:
        cancelled: asked before every decoding step.
        memo, probe: see `Orchestrator`.
    """

    binding: Binding
    options: RunOptions
    bus: Bus
    store: RunStore | None
    cancelled: Callable[[], bool]
    memo: Memo | None = None
    probe: Probe | None = None

    def prepare(self, engine: Engine, unit: Unit, state: ItemState) -> Prepared:
        """Deliver what is sent to a unit and plan its turn; an outcome where that fails or is called off."""
        if self.cancelled():
            return Outcome(unit, error="cancelled")
        try:
            return self._plan(engine, unit, state)
        except UserError as error:
            return Outcome(unit, error=str(error))
        except Exception as error:
            log.exception("unit %s failed", unit)
            return Outcome(unit, error=f"{type(error).__name__}: {error}")

    def answer(
        self, engine: Engine, units: Sequence[tuple[Unit, ItemState]], prepared: Callable[[], list[Prepared]]
    ) -> list[Outcome]:
        """Answer units of one model as one batch; each may fail on its own.

        Args:
            prepared: gives the units' turns, in their order.
        """
        for unit, _ in units:
            self.bus.emit("node_started", item=unit.item, node=unit.node, child=unit.child)
        ready = prepared()
        outcomes = [made for made in ready if isinstance(made, Outcome)]
        plans = [(*of, made) for of, made in zip(units, ready, strict=True) if isinstance(made, Turnplan)]
        try:
            answers = self._answers(engine, [plan for _, _, plan in plans])
        except Exception as error:
            log.exception("a batch of %d units failed", len(plans))
            return [
                *outcomes,
                *(Outcome(unit, error=f"{type(error).__name__}: {error}") for unit, _, _ in plans),
            ]
        for (unit, state, plan), answer in zip(plans, answers, strict=True):
            if answer.finish == "cancelled":
                outcomes.append(Outcome(unit, error="cancelled"))
                continue
            result, message = close_turn(unit.node, engine, plan, answer)
            if self.probe is not None:
                self.probe(unit, engine, plan, answer)
            if self.binding.outgoing(unit.node):
                state.messages.setdefault(unit.node, {})[unit.child or 0] = message
            outcomes.append(Outcome(unit, result))
        return outcomes

    def _answers(self, engine: Engine, plans: Sequence[Turnplan]) -> list[Generation]:
        """Generate; turns that stand on nothing are looked up in the memo first."""
        found = [self.memo.find(engine, plan) if self.memo is not None else None for plan in plans]
        missing = [plan for plan, answer in zip(plans, found, strict=True) if answer is None]
        fresh = iter(engine.generate([plan.request for plan in missing]))
        answers = []
        for plan, answer in zip(plans, found, strict=True):
            made = answer if answer is not None else next(fresh)
            if answer is None and self.memo is not None:
                self.memo.add(engine, plan, made)
            answers.append(made)
        return answers

    def _plan(self, engine: Engine, unit: Unit, state: ItemState) -> Turnplan:
        workflow = self.binding.workflow
        node = workflow.nodes[unit.node]
        context = state.template_context()
        if node.map is not None and unit.child is not None:
            context |= {node.map.item: state.elements[unit.node][unit.child], "index": unit.child}
        where = str(workflow.location(("nodes", unit.node, "prompt")))
        prompt = render(node.prompt, context, where=where)
        system = workflow.agents[node.agent].system
        task = Task(prompt, system, engine)
        deliveries = [
            d
            for number, edge, channel in self.binding.incoming(unit.node)
            for d in self._receive(unit, state, edge.sender, number, channel, task)
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
            cancelled=self.cancelled,
            on_token=self._speaker(unit),
        )

    def _keeps_cache(self, node: str) -> bool:
        """Whether somebody stands on this node's cache: a receiver, the next run (memo), or the probe."""
        if self.memo is not None or self.probe is not None:
            return True
        return any(channel.needs_cache for _, _, channel in self.binding.outgoing(node))

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
            self.bus.emit(
                "message",
                item=unit.item,
                node=unit.node,
                child=unit.child,
                sender=sender,
                channel=channel.name,
                bytes=delivery.result.bytes,
                digest=digest,
            )
            for text in delivery.result.warnings:
                self.bus.emit("warning", item=unit.item, node=unit.node, child=unit.child, sender=sender, text=text)
            found.append(delivery)
        return found

    def _speaker(self, unit: Unit) -> Callable[[str], None]:
        return lambda text: self.bus.emit("node_token", item=unit.item, node=unit.node, child=unit.child, text=text)

    def _seed(self, unit: Unit) -> int:
        return int.from_bytes(blake3(f"{self.options.seed}/{unit}".encode()).digest()[:7], "big")
