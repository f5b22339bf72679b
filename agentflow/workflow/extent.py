"""How large a workflow becomes when its loops and sub-workflows are unfolded, found without unfolding it."""

from __future__ import annotations

from agentflow.workflow.frames import Body
from agentflow.workflow.groups import Loop
from agentflow.workflow.problems import Problem

LARGEST = 50_000
"""Nodes and edges, those between rounds included, of a workflow that has loops or sub-workflows."""


class Extent:
    """Sizes of bodies. What is too large is a problem at the innermost loop or sub-workflow that makes it so."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._sizes: dict[int, int] = {}

    def of(self, body: Body) -> int:
        """Return how many nodes and edges a body is."""
        if id(body) not in self._sizes:
            self._sizes[id(body)] = self._count(body)
        return self._sizes[id(body)]

    def _count(self, body: Body) -> int:
        total = len(body.nodes) + sum(_copies(body, edge.receiver, edge.rounds) for edge in body.edges)
        for name, inner in body.inner.items():
            node, before = body.nodes[name], total
            size = self.of(inner)
            if isinstance(node, Loop):
                size = node.loop.max * (size + _width(inner, "begins") * _width(inner, "ends"))
            total += size
            if total > LARGEST >= before and self.of(inner) <= LARGEST:
                key = ("loop", "max") if isinstance(node, Loop) else ("workflow",)
                what = f"too large: unfolded, '{name}' makes {total:,} nodes and edges of this, more than {LARGEST:,}"
                fix = "Allow fewer rounds, or use fewer nodes in them."
                self.problems.append(body.origins.problem(body.node_path(name, *key), what, fix))
        return total


def _copies(body: Body, receiver: str, rounds: str) -> int:
    """Return how many edges of the expanded workflow one that is written stands for."""
    copies = 1
    for holder, name in body.walk(receiver.split("."), outwards=False) or ():
        node = holder.nodes[name]
        if isinstance(node, Loop) and rounds == "each":
            copies *= node.loop.max
    return copies


def _width(body: Body, end: str) -> int:
    """Return how many nodes a round begins or ends with."""
    names = body.begins if end == "begins" else body.ends
    return sum(_width(body.inner[name], end) if name in body.inner else 1 for name in names)
