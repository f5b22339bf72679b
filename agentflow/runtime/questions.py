"""What a unit is asked, and the key that says whether a stored answer is the answer to it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blake3 import blake3

from agentflow.errors import UserError
from agentflow.models.engine import Engine
from agentflow.runtime.binding import Binding
from agentflow.runtime.records import Key, Record
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.workflow.fields import Generation
from agentflow.workflow.graph import ancestors, build_graph
from agentflow.workflow.references import mentioned
from agentflow.workflow.templates import render


@dataclass(frozen=True)
class Question:
    """A unit's prompt, rendered, and how it is to be answered.

    Attributes:
        seed: the unit's own, derived from the run's.
    """

    system: str
    prompt: str
    settings: Generation
    seed: int


@dataclass(frozen=True, eq=False)
class Questions:
    """Asks the units of one run.

    Attributes:
        run_seed: that the units' own are derived from.
    """

    binding: Binding
    run_seed: int

    def of(self, unit: Unit, state: ItemState) -> Question:
        """Render what a unit is asked.

        Raises:
            TemplateError: the prompt can't be rendered.
        """
        workflow = self.binding.workflow
        node = workflow.nodes[unit.node]
        prompt = self._rendered(unit, state, node.prompt, ("prompt",))
        return Question(workflow.agents[node.agent].system, prompt, workflow.effective(unit.node), self.seed(unit))

    def fallback(self, unit: Unit, state: ItemState) -> str:
        """Render what stands for a unit's answer where it has failed. Raises `TemplateError`."""
        fallback = self.binding.workflow.nodes[unit.node].on_error.fallback
        return self._rendered(unit, state, fallback, ("on_error", "fallback"))

    def answered_by(self, record: Record, unit: Unit, state: ItemState, model: str) -> bool:
        """Whether a stored record is the answer to what a unit would be asked now."""
        try:
            stands_in = record.answer.finish == "fallback"
            if stands_in and self.fallback(unit, state) != record.answer.text:
                return False
            return record.key == self.key(unit, state, self.of(unit, state), model)
        except UserError:
            return False  # told when the unit runs

    def seed(self, unit: Unit, failed: int = 0) -> int:
        """A unit's own seed; another one for each time it is tried again."""
        tried = f"#{failed}" if failed else ""
        return int.from_bytes(blake3(f"{self.run_seed}/{unit}{tried}".encode()).digest()[:7], "big")

    def _rendered(self, unit: Unit, state: ItemState, template: str, path: tuple[str, ...]) -> str:
        node = self.binding.workflow.nodes[unit.node]
        context = self.context(unit.node, template, state)
        if node.map is not None and unit.child is not None:
            context |= {node.map.item: state.elements[unit.node][unit.child], "index": unit.child}
        return render(template, context, where=str(self.binding.workflow.location(("nodes", unit.node, *path))))

    def context(self, node: str, template: str, state: ItemState, *, is_expression: bool = False) -> dict[str, Any]:
        """What a template of a node sees: the nodes it names, or its ancestors where it looks at all of them."""
        seen: Iterable[str] | None = mentioned(template, "nodes", is_expression=is_expression)
        if seen is None:
            above = ancestors(self._graph, node)
            seen = [name for name in self._graph if name in above]
        return state.template_context(seen)

    def key(self, unit: Unit, state: ItemState, question: Question, model: str) -> Key:
        """The content key: a digest of everything that the answer depends on.

        That is the rendered prompt, instructions and settings, the model, the unit's seed, and for every message its
        channel with all settings and what the sender was asked and said. What a template shows of inputs and of other
        nodes is in the prompt.
        """
        received = [
            [edge.sender, channel.name, channel.settings.model_dump(mode="json"), state.digest(edge.sender)]
            for _, edge, channel in self.binding.incoming(unit.node)
        ]
        return {
            "prompt": _digest(question.prompt),
            "instructions": _digest(question.system),
            "settings": _digest(question.settings.settings),
            "seed": _digest(question.seed),
            "model": _digest([*self.binding.model_of(unit.node).identity, model]),
            "messages": _digest(received),
        }

    @cached_property
    def _graph(self) -> Any:
        return build_graph(self.binding.workflow)


def _digest(content: Any) -> str:
    return blake3(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest(16)


def mark_of(engine: Engine) -> str:
    """Which weights, in which number format, answer: what must be equal for a stored answer to be theirs."""
    own = engine.fingerprint
    parts = [own.weights, own.tokenizer, own.rope, str(own.geometry), str(engine.loaded.dtype)]
    return blake3("\0".join(parts).encode()).hexdigest()
