"""A workflow as people look at it: the rounds of a loop folded into one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agentflow.workflow.frames import address
from agentflow.workflow.graph import waits

if TYPE_CHECKING:
    import networkx as nx

    from agentflow.workflow.schema import Workflow


def folded(workflow: Workflow, channels: Iterable[str] | None = None) -> nx.DiGraph[str]:
    """Return the graph of addresses: nodes in all rounds as one, without what is sent from round to round.

    Each edge has the name of its `channel`, "" where one node only waits for another.

    Args:
        channels: the names to use, in the order of the workflow's edges.
    """
    import networkx as nx

    names = channels if channels is not None else (edge.channel.name for edge in workflow.edges)
    sent = {(edge.sender, edge.receiver): name for edge, name in zip(workflow.edges, names, strict=True)}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(map(address, workflow.nodes))
    for pair in waits(workflow):
        if not _is_between_rounds(*pair):
            sender, receiver = map(address, pair)
            if pair in sent or not graph.has_edge(sender, receiver):
                graph.add_edge(sender, receiver, channel=sent.get(pair, ""))
    return graph


def folded_edges(graph: nx.DiGraph[str]) -> list[tuple[str, str, str]]:
    """Return the edges of a folded graph with their channels."""
    return [(sender, receiver, graph.edges[sender, receiver]["channel"]) for sender, receiver in graph.edges]


def _is_between_rounds(sender: str, receiver: str) -> bool:
    """Whether two nodes are in different rounds of one loop."""
    for first, other in zip(sender.split("/"), receiver.split("/"), strict=False):
        if first != other:
            return address(first) == address(other)
    return False
