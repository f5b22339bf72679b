"""One batch of turns on one engine: plan each, generate all together, close each; each may fail on its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from agentflow.channels.base import Channel, Message, Task
from agentflow.errors import PayloadError, UserError
from agentflow.kv.payload import Payload
from agentflow.kv.wire import read_payload, write_payload
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool, Speaker
from agentflow.models.remote import RemoteModel
from agentflow.models.requests import Generation
from agentflow.runtime.agent import Delivery, Turnplan, close_turn, deliver, plan_turn
from agentflow.runtime.asking import ask
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Bus
from agentflow.runtime.failures import kind_of
from agentflow.runtime.memo import Memo
from agentflow.runtime.memory import Limit
from agentflow.runtime.options import RunOptions
from agentflow.runtime.questions import Questions, mark_of
from agentflow.runtime.recall import complete, recall
from agentflow.runtime.records import Answer, Record
from agentflow.runtime.results import NodeResult
from agentflow.runtime.runs import RunStore
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.workflow.parts import ErrorKind

Probe = Callable[[Unit, Engine, Turnplan, Generation], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of a unit: what it leaves behind, or an error in words."""

    unit: Unit
    record: Record | None = None
    error: str = ""
    kind: ErrorKind | None = None
    """Of the error; None where the unit was called off."""


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
    engines: EnginePool
    options: RunOptions
    bus: Bus
    store: RunStore | None
    cancelled: Callable[[], bool]
    memo: Memo | None = None
    probe: Probe | None = None

    def prepare(self, speaker: Speaker, unit: Unit, state: ItemState) -> Prepared:
        """Deliver what is sent to a unit and plan its turn; an outcome where that fails or is called off."""
        if self.cancelled():
            return Outcome(unit, error="cancelled")
        try:
            return self._plan(speaker, unit, state)
        except UserError as error:
            return Outcome(unit, error=str(error), kind=kind_of(error))
        except Exception as error:
            log.exception("unit %s failed", unit)
            return _broken(unit, error)

    def ask_remote(self, unit: Unit, state: ItemState) -> Outcome:
        """Answer a unit whose model is served elsewhere, on whatever thread this is called."""
        try:
            speaker = self.engines.speaker(self.binding.model_of(unit.node))
        except UserError as error:
            return Outcome(unit, error=str(error), kind=kind_of(error))
        return self.answer(speaker, [(unit, state)], lambda: [self.prepare(speaker, unit, state)])[0]

    def answer(
        self, speaker: Speaker, units: Sequence[tuple[Unit, ItemState]], prepared: Callable[[], list[Prepared]]
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
            outputs = [self.binding.workflow.agent_node(unit.node).output for unit, _, _ in plans]
            said = ask(speaker, [plan for _, _, plan in plans], outputs, partial(self._answers, speaker))
        except UserError as error:
            return [*outcomes, *(Outcome(unit, error=str(error), kind=kind_of(error)) for unit, _, _ in plans)]
        except Exception as error:
            log.exception("a batch of %d units failed", len(plans))
            return [*outcomes, *(_broken(unit, error) for unit, _, _ in plans)]
        for (unit, state, plan), one in zip(plans, said, strict=True):
            answer = one.answer
            if answer.finish == "cancelled":
                outcomes.append(Outcome(unit, error="cancelled"))
                continue
            if answer.finish == "deadline" and self.binding.workflow.nodes[unit.node].minds_time:
                late = f"no whole answer within {plan.request.deadline:g} s"
                outcomes.append(Outcome(unit, error=late, kind="timeout"))
                continue
            if one.error:
                outcomes.append(Outcome(unit, error=f"no answer that fits its schema: {one.error}", kind="output"))
                continue
            result, message = close_turn(self.binding.workflow.layout.local(unit.node), speaker, plan, answer)
            result = replace(result, generated=one.generated, value=one.value)
            for text in result.warnings:
                self._warn(unit, unit.node, text)
            if self.probe is not None and isinstance(speaker, Engine):
                self.probe(unit, speaker, plan, answer)
            if self.binding.outgoing(unit.node):
                state.messages.setdefault(unit.node, {})[unit.child or 0] = message
            outcomes.append(Outcome(unit, Record(unit, plan.key, mark_of(speaker), result, Answer.of(answer))))
        return outcomes

    def stored(self, unit: Unit, state: ItemState) -> Record | None:
        """What an earlier process stored of a unit, if it was asked just what it would be asked now."""
        record = self.store.find(unit) if self.store is not None else None
        if record is None:
            return None
        mark = self._mark(unit.node)
        return record if self.questions.answered_by(record, unit, state, mark) else None

    def fallback(self, unit: Unit, state: ItemState) -> Record:
        """What a node's fallback leaves behind in place of an answer; not to be stored where it has no key.

        Raises:
            TemplateError: it can't be rendered.
        """
        text = self.questions.fallback(unit, state)
        mark = self._mark(unit.node)
        try:
            key = self.questions.key_of(unit, state, mark)
        except UserError:
            key = {}  # the question is what failed
        return Record(unit, key, mark, NodeResult.unspoken(text, "fallback"), Answer(text, (), "fallback"))

    def _speaker(self, node: str) -> Speaker:
        return self.engines.speaker(self.binding.model_of(node))

    def _mark(self, node: str) -> str:
        """Which weights answer; none do for a tool."""
        return "" if node in self.binding.tools else mark_of(self._speaker(node))

    @cached_property
    def questions(self) -> Questions:
        """What units are asked."""
        return Questions(self.binding, self.options.seed)

    def _answers(self, speaker: Speaker, plans: Sequence[Turnplan]) -> list[Generation]:
        """Generate; turns that stand on nothing are looked up in the memo first."""
        found = [self.memo.find(speaker, plan) if self.memo is not None else None for plan in plans]
        missing = [plan for plan, answer in zip(plans, found, strict=True) if answer is None]
        if isinstance(speaker, RemoteModel):
            fresh = iter([speaker.answer(plan.turns, plan.request) for plan in missing])
        else:
            fresh = iter(speaker.generate([plan.request for plan in missing]))
        answers = []
        for plan, answer in zip(plans, found, strict=True):
            made = answer if answer is not None else next(fresh)
            if answer is None and self.memo is not None:
                self.memo.add(speaker, plan, made)
            answers.append(made)
        return answers

    def _plan(self, speaker: Speaker, unit: Unit, state: ItemState, *, again: bool = False) -> Turnplan:
        """Plan a unit's turn; `again`, when its answer is known and only its message is wanted, without a word."""
        question = self.questions.of(unit, state)
        task = Task(question.prompt, question.system, speaker if isinstance(speaker, Engine) else None)
        deliveries = [
            d
            for number, edge, channel in self.binding.incoming(unit.node)
            for d in self._receive(unit, state, state.source(edge.sender), number, channel, task, again)
        ]
        plan = plan_turn(
            speaker,
            system=question.system,
            prompt=question.prompt,
            deliveries=deliveries,
            settings=question.settings,
            choices=question.choices,
            seed=self.questions.seed(unit, state.failures[unit.node, unit.child]),
            keep_cache=self._keeps_cache(unit.node),
            reuse=self.options.reuse,
            limit=self._limit(unit),
            cancelled=self.cancelled,
            on_token=self._teller(unit),
        )
        if plan.memory is not None and not again:
            self.bus.emit("memory", item=unit.item, node=unit.node, child=unit.child, **vars(plan.memory))
        return replace(plan, key=self.questions.key(unit, state, question, mark_of(speaker)))

    def _plan_again(self, unit: Unit, state: ItemState) -> tuple[Speaker, Turnplan]:
        speaker = self._speaker(unit.node)
        return speaker, self._plan(speaker, unit, state, again=True)

    def _limit(self, unit: Unit) -> Limit | None:
        """How long the conversation of the unit's agent may be; None where nothing is said."""
        workflow = self.binding.workflow
        spec, agent = workflow.memory_of(unit.node), workflow.agent_node(unit.node).agent
        if spec is None:
            return None
        return Limit(spec, agent, str(unit), str(workflow.location(("agents", agent, "memory", "max_tokens"))))

    def _keeps_cache(self, node: str) -> bool:
        """Whether somebody stands on this node's cache: a receiver, the next run (memo), the probe, or a second try."""
        if self.memo is not None or self.probe is not None or self.binding.workflow.agent_node(node).output is not None:
            return True
        return any(channel.needs_cache for _, _, channel in self.binding.outgoing(node))

    def _messages(self, state: ItemState, sender: str) -> dict[int, Message]:
        """What a finished sender's children (or the one sender) have to say, by child."""
        if complete(state, sender):
            return state.messages.get(sender, {})
        return recall(self.binding, self._plan_again, self._speaker, state, sender)

    def _receive(
        self, unit: Unit, state: ItemState, sender: str, number: int, channel: Channel, task: Task, again: bool
    ) -> list[Delivery]:
        """What the sender's children (or the one sender) have for this unit."""
        messages = state.messages.get(sender, {}) if again else self._messages(state, sender)
        found = []
        for child, message in sorted(messages.items()):
            known = state.payloads.get(sender, {}).get((number, child)) if channel.task_free else None
            kept = self._kept(unit, number, child) if again and known is None else known
            payload, delivery = deliver(channel, message, task, kept, sender=sender)
            if channel.task_free:
                state.payloads.setdefault(sender, {})[number, child] = payload
            if not again:
                self._tell(unit, sender, channel, delivery, self._keep(unit, number, child, payload, known))
            found.append(delivery)
        return found

    def _keep(self, unit: Unit, number: int, child: int, payload: Payload, known: Payload | None) -> str:
        """Write a payload that is to be kept into the run's folder, once; its digest, or ""."""
        if self.store is None or not self.options.keep_payloads or known is not None:
            return ""
        return write_payload(payload, self._payload_path(unit, number, child), key=self.options.signing_key)

    def _kept(self, unit: Unit, number: int, child: int) -> Payload | None:
        """A payload that was kept the first time; None where there is none that can be read."""
        if self.store is None or not self.options.keep_payloads:
            return None
        try:
            return read_payload(self._payload_path(unit, number, child), key=self.options.signing_key)
        except (OSError, PayloadError):
            return None

    def _payload_path(self, unit: Unit, number: int, child: int) -> Path:
        assert self.store is not None
        return self.store.payload_path(f"{unit}-{number}-{child}")

    def _tell(self, unit: Unit, sender: str, channel: Channel, delivery: Delivery, digest: str) -> None:
        where: dict[str, Any] = {"item": unit.item, "node": unit.node, "child": unit.child, "sender": sender}
        self.bus.emit("message", **where, channel=channel.name, bytes=delivery.result.bytes, digest=digest)
        for text in delivery.result.warnings:
            self._warn(unit, sender, text)

    def _warn(self, unit: Unit, sender: str, text: str) -> None:
        self.bus.emit("warning", item=unit.item, node=unit.node, child=unit.child, sender=sender, text=text)

    def _teller(self, unit: Unit) -> Callable[[str], None]:
        return lambda text: self.bus.emit("node_token", item=unit.item, node=unit.node, child=unit.child, text=text)


def _broken(unit: Unit, error: Exception) -> Outcome:
    return Outcome(unit, error=f"{type(error).__name__}: {error}", kind=kind_of(error))
