"""What a unit is asked, and the key that says whether a stored answer is the answer to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from agentflow.channels.base import Channel
from agentflow.errors import UserError
from agentflow.models.pool import Speaker
from agentflow.models.remote import RemoteModel
from agentflow.runtime.binding import Binding
from agentflow.runtime.records import Key, Record
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.tools import Tool
from agentflow.workflow.fields import Generation
from agentflow.workflow.graph import ancestors
from agentflow.workflow.location import KeyPath
from agentflow.workflow.meaning import Meaning
from agentflow.workflow.parts import OutputSpec, ToolNode
from agentflow.workflow.templates import TemplateError, evaluate, render, render_value


@dataclass(frozen=True)
class Question:
    """A unit's prompt, rendered, and how it is to be answered.

    Attributes:
        seed: the unit's own, derived from the run's.
        choices: the answers it may give; None where it is free.
        output: what JSON its answer must be; None where it is free.
    """

    system: str
    prompt: str
    settings: Generation
    seed: int
    choices: tuple[str, ...] | None = None
    output: OutputSpec | None = None


@dataclass(frozen=True)
class Call:
    """A unit's tool, and the arguments that it is called with, rendered."""

    tool: Tool
    arguments: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Questions:
    """Asks the units of one run.

    Attributes:
        run_seed: that the units' own are derived from.
    """

    binding: Binding
    run_seed: int

    def of(self, unit: Unit, state: ItemState) -> Question:
        """Render what an agent's unit is asked.

        Raises:
            TemplateError: the prompt can't be rendered.
        """
        workflow = self.binding.workflow
        node = workflow.agent_node(unit.node)
        prompt = self._rendered(unit, state, node.prompt, ("prompt",))
        choices = None if node.choose is None else self._choices(unit, state, node.choose)
        settings = workflow.effective(unit.node)
        return Question(workflow.agents[node.agent].system, prompt, settings, self.seed(unit), choices, node.output)

    def call(self, unit: Unit, state: ItemState) -> Call:
        """Render what a tool's unit is called with. Raises `TemplateError`."""
        node = self.binding.workflow.nodes[unit.node]
        assert isinstance(node, ToolNode)
        arguments = {name: self._value(unit, state, value, ("with", name)) for name, value in node.arguments.items()}
        return Call(self.binding.tools[unit.node], arguments)

    def fallback(self, unit: Unit, state: ItemState) -> str:
        """Render what stands for a unit's answer where it has failed. Raises `TemplateError`."""
        fallback = self.binding.workflow.nodes[unit.node].on_error.fallback
        return self._rendered(unit, state, fallback, ("on_error", "fallback"))

    def answered_by(self, record: Record, unit: Unit, state: ItemState, model: str) -> bool:
        """Whether a stored record is the answer to what a unit would be asked now."""
        try:
            return not self.changed(record, unit, state, model)
        except UserError:
            return False  # told when the unit runs

    def changed(self, record: Record, unit: Unit, state: ItemState, model: str) -> tuple[str, ...]:
        """What a unit would be asked otherwise now, part by part of the key.

        Raises:
            TemplateError: what it would be asked can't be rendered.
        """
        stands_in = record.answer.finish == "fallback"
        if stands_in and self.fallback(unit, state) != record.answer.text:
            return ("fallback",)
        now = self.key_of(unit, state, model)
        return tuple(name for name in sorted(now.keys() | record.key.keys()) if now.get(name) != record.key.get(name))

    def seed(self, unit: Unit, failed: int = 0) -> int:
        """A unit's own seed; another one for each time it is tried again."""
        tried = f"#{failed}" if failed else ""
        return int.from_bytes(blake3(f"{self.run_seed}/{unit}{tried}".encode()).digest()[:7], "big")

    def _rendered(self, unit: Unit, state: ItemState, template: str, path: tuple[str, ...]) -> str:
        return render(template, self._seen(unit, state, template), where=self._where(unit, path))

    def _value(self, unit: Unit, state: ItemState, value: Any, path: KeyPath) -> Any:
        """A value with every template in it filled in; one that is a single expression becomes what that gives."""
        if isinstance(value, str):
            return render_value(value, self._seen(unit, state, value), where=self._where(unit, path))
        if isinstance(value, dict):
            return {key: self._value(unit, state, inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(unit, state, inner, (*path, place)) for place, inner in enumerate(value)]
        return value

    def _seen(self, unit: Unit, state: ItemState, template: str, *, is_expression: bool = False) -> dict[str, Any]:
        """What a template of a unit sees: of a child, its element as well."""
        node = self.binding.workflow.nodes[unit.node]
        context = self.context(unit.node, template, state, is_expression=is_expression)
        if node.map is not None and unit.child is not None:
            context |= {node.map.item: state.elements[unit.node][unit.child], "index": unit.child}
        return context

    def _choices(self, unit: Unit, state: ItemState, expression: str) -> tuple[str, ...]:
        where = self._where(unit, ("choose",))
        found = evaluate(expression, self._seen(unit, state, expression, is_expression=True), where=where)
        if not isinstance(found, list | tuple) or not found or not all(isinstance(c, str) and c.strip() for c in found):
            fix = "It must give a list of texts, as `inputs.options` does."
            raise TemplateError(
                f"`choose` gave {found!r:.60}, which are no answers to choose from.", where=where, fix=fix
            )
        return tuple(found)

    def _where(self, unit: Unit, path: KeyPath) -> str:
        return str(self.binding.workflow.location(("nodes", unit.node, *path)))

    def context(self, node: str, template: str, state: ItemState, *, is_expression: bool = False) -> dict[str, Any]:
        """What a template of a node sees: the nodes it names, or its ancestors where it looks at all of them."""
        layout = self.binding.workflow.layout
        frame, local = layout.frames[node], layout.local(node)
        return Meaning(state).context(
            frame, local, template, is_expression=is_expression, above=lambda: ancestors(self.binding.graph, node)
        )

    def above(self, node: str) -> list[str]:
        """The ancestors of a node, in the order written."""
        above = ancestors(self.binding.graph, node)
        return [name for name in self.binding.graph if name in above]

    def key_of(self, unit: Unit, state: ItemState, model: str) -> Key:
        """The key of a unit as it would be asked now. Raises `TemplateError`."""
        if unit.node in self.binding.tools:
            return self.key_of_call(self.call(unit, state))
        return self.key(unit, state, self.of(unit, state), model)

    def key_of_call(self, call: Call) -> Key:
        """The content key of a tool's result: which tool, as it is written now, and its arguments."""
        return {"tool": _digest([call.tool.name, call.tool.mark]), "arguments": _digest(call.arguments)}

    def key(self, unit: Unit, state: ItemState, question: Question, model: str) -> Key:
        """The content key of an answer: a digest of everything that it depends on.

        That is the rendered prompt, instructions and settings, the agent's memory, the model, the unit's seed, and
        for every message its channel with all settings and what the sender was asked and said. What a template shows
        of inputs and of other nodes is in the prompt.
        """
        received = [
            [
                sender,
                channel.name,
                channel.settings.model_dump(mode="json"),
                state.digest(sender),
                self._channel_mark(channel, sender, unit.node),
            ]
            for _, edge, channel in self.binding.incoming(unit.node)
            for sender in (state.source(edge.sender),)
        ]
        choices = {} if question.choices is None else {"choices": _digest(question.choices)}
        spec = self.binding.workflow.memory_of(unit.node)
        memory = {} if spec is None else {"memory": _digest(spec.model_dump())}
        output = {} if question.output is None else {"output": _digest(question.output.model_dump(mode="json"))}
        return {
            **choices,
            **output,
            **memory,
            "prompt": _digest(question.prompt),
            "instructions": _digest(question.system),
            "settings": _digest(question.settings.settings),
            "seed": _digest(question.seed),
            "model": _digest([*self.binding.model_of(unit.node).identity, model]),
            "messages": _digest(received),
        }

    def _channel_mark(self, channel: Channel, sender: str, receiver: str) -> str:
        """What else the channel depends on; what a tool gives travels as text, and depends on nothing else."""
        models = self.binding.model_of
        return "" if sender in self.binding.tools else channel.mark(models(sender), models(receiver))


_encoded = json.JSONEncoder(sort_keys=True, default=str).encode


def _digest(content: Any) -> str:
    return blake3(_encoded(content).encode()).hexdigest(16)


def mark_of(speaker: Speaker) -> str:
    """Which weights, in which number format, answer: what must be equal for a stored answer to be theirs."""
    if isinstance(speaker, RemoteModel):
        return speaker.mark
    own = speaker.fingerprint
    parts = [own.weights, own.tokenizer, own.rope, str(own.geometry), str(speaker.loaded.dtype)]
    return blake3("\0".join(parts).encode()).hexdigest()
