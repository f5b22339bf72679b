"""What a unit is asked, and the key that says whether a stored answer is the answer to it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blake3 import blake3

from agentflow.models.engine import Engine
from agentflow.runtime.binding import Binding
from agentflow.runtime.records import FORM
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
        seed: of the run.
    """

    binding: Binding
    seed: int

    def of(self, unit: Unit, state: ItemState) -> Question:
        """Render what a unit is asked.

        Raises:
            TemplateError: the prompt can't be rendered.
        """
        workflow = self.binding.workflow
        node = workflow.nodes[unit.node]
        context = self.context(unit.node, node.prompt, state)
        if node.map is not None and unit.child is not None:
            context |= {node.map.item: state.elements[unit.node][unit.child], "index": unit.child}
        where = str(workflow.location(("nodes", unit.node, "prompt")))
        prompt = render(node.prompt, context, where=where)
        return Question(workflow.agents[node.agent].system, prompt, workflow.effective(unit.node), self._seed(unit))

    def context(self, node: str, template: str, state: ItemState, *, is_expression: bool = False) -> dict[str, Any]:
        """What a template of a node sees: the nodes it names, or its ancestors where it looks at all of them."""
        seen: Iterable[str] | None = mentioned(template, "nodes", is_expression=is_expression)
        if seen is None:
            above = ancestors(self._graph, node)
            seen = [name for name in self._graph if name in above]
        return state.template_context(seen)

    def key(self, unit: Unit, state: ItemState, question: Question, model: str) -> str:
        """The content key: a digest of everything that the answer depends on.

        That is the rendered question, the model, the unit's seed, and for every message its channel with all settings
        and what the sender was asked and said. What a template shows of inputs and of other nodes is in the prompt.
        """
        received = [
            [edge.sender, channel.name, channel.settings.model_dump(mode="json"), state.digest(edge.sender)]
            for _, edge, channel in self.binding.incoming(unit.node)
        ]
        spec = self.binding.model_of(unit.node)
        content = [
            FORM,
            [unit.item, unit.node, unit.child],
            [question.system, question.prompt, question.settings.settings, question.seed],
            [*spec.identity, model],
            received,
        ]
        return blake3(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def _seed(self, unit: Unit) -> int:
        return int.from_bytes(blake3(f"{self.seed}/{unit}".encode()).digest()[:7], "big")

    @cached_property
    def _graph(self) -> Any:
        return build_graph(self.binding.workflow)


def mark_of(engine: Engine) -> str:
    """Which weights, in which number format, answer: what must be equal for a stored answer to be theirs."""
    own = engine.fingerprint
    parts = [own.weights, own.tokenizer, own.rope, str(own.geometry), str(engine.loaded.dtype)]
    return blake3("\0".join(parts).encode()).hexdigest()
