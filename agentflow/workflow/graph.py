"""The workflow as a directed graph: order, ancestors, ends and cycles, each linear in nodes and edges."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

    from agentflow.workflow.schema import Workflow

_BLOCK = 1024


def build_graph(workflow: Workflow) -> nx.DiGraph[str]:
    """Return the graph of a workflow: nodes in the order written, an edge wherever one waits for another."""
    return graph_of(workflow.nodes, waits(workflow))


def waits(workflow: Workflow) -> Iterator[tuple[str, str]]:
    """Give who ends before whom begins: sender and receiver of every edge, then those that only wait."""
    for edge in workflow.edges:
        yield edge.sender, edge.receiver
    for name in workflow.nodes:
        for other in workflow.waits_for(name):
            if other in workflow.nodes:
                yield other, name


def graph_of(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> nx.DiGraph[str]:
    """Return a graph of the names with the pairs whose both ends are among them."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(pair for pair in pairs if pair[0] in graph and pair[1] in graph)
    return graph


def topological_order(graph: nx.DiGraph[str]) -> list[str]:
    """Return every node after its ancestors, and otherwise in the order written."""
    import networkx as nx

    place = {name: number for number, name in enumerate(graph)}
    return list(nx.lexicographical_topological_sort(graph, key=place.__getitem__))


def ancestors(graph: nx.DiGraph[str], name: str) -> set[str]:
    """Return every node from which a path of edges leads to `name`."""
    found: set[str] = set()
    pending = [name]
    while pending:
        new = [other for other in graph.predecessors(pending.pop()) if other not in found]
        found.update(new)
        pending += new
    return found


def sources(graph: nx.DiGraph[str]) -> list[str]:
    """Return the nodes that nothing is sent to, in the order written."""
    return [name for name in graph if not graph.pred[name]]


def sinks(graph: nx.DiGraph[str]) -> list[str]:
    """Return the nodes that send to nobody, in the order written."""
    return [name for name in graph if not graph.succ[name]]


def find_cycle(graph: nx.DiGraph[str]) -> list[str] | None:
    """Return a cycle such as ["a", "b", "a"], or None."""
    found = cycles(graph)
    return found[0] if found else None


def cycles(graph: nx.DiGraph[str]) -> list[list[str]]:
    """Return one shortest cycle of every knot of nodes that wait for each other, by the order written."""
    import networkx as nx

    place = {name: number for number, name in enumerate(graph)}
    knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    knots += [{name} for name in graph if name in graph.succ[name]]
    starts = sorted((min(knot, key=place.__getitem__), knot) for knot in knots)
    return [_shortest_cycle(graph, start, knot) for start, knot in starts]


def unreached(graph: nx.DiGraph[str], pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs (first, later) for which no path of edges leads from `first` to `later`.

    Instead of one search a pair, the set of wanted ancestors of every node is carried along as the bits of a
    number, 1,024 of them at a time.
    """
    missing = {pair for pair in pairs if pair[0] not in graph.pred[pair[1]]}
    if not missing:
        return set()
    order = topological_order(graph)
    wanted = sorted({first for first, _ in missing})
    found: set[tuple[str, str]] = set()
    for begin in range(0, len(wanted), _BLOCK):
        bits = {name: 1 << number for number, name in enumerate(wanted[begin : begin + _BLOCK])}
        above: dict[str, int] = {}
        for name in order:
            mask = 0
            for other in graph.pred[name]:
                mask |= above[other] | bits.get(other, 0)
            above[name] = mask
        found |= {pair for pair in missing if above[pair[1]] & bits.get(pair[0], 0)}
    return missing - found


def _shortest_cycle(graph: nx.DiGraph[str], start: str, knot: set[str]) -> list[str]:
    """Search breadth first from `start` until an edge leads back to it."""
    came_from: dict[str, str] = {}
    queue = deque([start])
    while queue:
        name = queue.popleft()
        if start in graph.succ[name]:
            back: list[str] = []
            while name != start:
                back.append(name)
                name = came_from[name]
            return [start, *reversed(back), start]
        for other in graph.succ[name]:
            if other in knot and other not in came_from and other != start:
                came_from[other] = name
                queue.append(other)
    raise ValueError(f"{start} lies on no cycle")
