"""One item's way through a workflow: its inputs, what nodes said, and the messages still needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentflow.channels.base import Message
from agentflow.kv.payload import Payload
from agentflow.runtime.results import NodeResult


@dataclass(eq=False)
class ItemState:
    """Changes while the item runs; only the orchestrator's thread and the unit that is running touch it.

    Attributes:
        results: by node, then by child (0 for a plain node).
        messages: of finished nodes, dropped as soon as no receiver is left.
        payloads: by edge number and child, made once for channels that don't look at the task.
        elements: of mapped nodes, the list they run over.
        errors: by unit, in words.
    """

    id: str
    inputs: dict[str, Any]
    results: dict[str, dict[int, NodeResult]] = field(default_factory=dict)
    messages: dict[str, dict[int, Message]] = field(default_factory=dict)
    payloads: dict[tuple[int, int], Payload] = field(default_factory=dict)
    elements: dict[str, list[Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    open_nodes: set[str] = field(default_factory=set)

    def in_order(self, node: str) -> tuple[NodeResult, ...]:
        """A node's results in the order of its children."""
        found = self.results.get(node, {})
        return tuple(found[child] for child in sorted(found))

    def template_context(self) -> dict[str, Any]:
        """What templates see: `inputs`, and `nodes.NAME.text` (children joined by lines) and `.texts`."""
        nodes = {}
        for node in self.results:
            texts = [r.text for r in self.in_order(node)]
            nodes[node] = {"text": "\n".join(texts), "texts": texts}
        return {"inputs": self.inputs, "nodes": nodes}
