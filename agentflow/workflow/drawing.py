"""A workflow as a picture: Mermaid for documents, lines of text for a terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentflow.workflow.folding import folded, folded_edges
from agentflow.workflow.frames import address
from agentflow.workflow.graph import sources
from agentflow.workflow.schema import Workflow

if TYPE_CHECKING:
    import networkx as nx

DEEPEST_BRANCH = 40


def to_mermaid(workflow: Workflow) -> str:
    """Return a Mermaid flowchart; nodes that run once for each item of a list have double sides."""
    graph = folded(workflow)
    titles: dict[str, str] = {}
    ids = {name: f"n{number}" for number, name in enumerate(graph)}
    lines = ["flowchart TD"]
    for name, node in workflow.nodes.items():
        label = f'"{address(name)}<br/>{_escaped(node.doer + _rounds(workflow, name))}"'
        titles.setdefault(address(name), f"[[{label}]]" if node.map else f"[{label}]")
    lines += [f"  {ids[name]}{box}" for name, box in titles.items()]
    for sender, receiver, channel in folded_edges(graph):
        arrow = f'-->|"{_escaped(channel)}"|' if channel else "-.->"
        lines.append(f"  {ids[sender]} {arrow} {ids[receiver]}")
    return "\n".join(lines) + "\n"


def to_tree(workflow: Workflow) -> list[str]:
    """Return the workflow as lines of a tree, from the nodes that nothing is sent to."""
    graph = folded(workflow)
    first = {address(name): name for name in reversed(workflow.nodes)}
    return tree_lines(
        workflow.name,
        graph,
        titled=lambda name: _titled(workflow, first[name]),
        sent=lambda sender, receiver: graph.edges[sender, receiver]["channel"],
    )


def tree_lines(
    title: str, graph: nx.DiGraph[str], *, titled: Callable[[str], str], sent: Callable[[str, str], str]
) -> list[str]:
    """Return a graph as lines of a tree.

    A node with several senders is drawn out below the first of them and only named below the others. A
    branch deeper than 40 nodes goes on as a tree of its own, which keeps the text linear in the graph.

    Args:
        titled: says what stands for a node.
        sent: the name of the channel from one node to another.
    """
    roots = sources(graph)[::-1]
    drawn: set[str] = set()
    lines = [title]
    # (node, the bars before it, the branch that leads to it, channel); the last is drawn first
    pending: list[tuple[str, str, str, str]] = [(name, "", "", "") for name in roots]
    later: deque[str] = deque()
    while pending or later:
        if not pending:
            pending.append((later.popleft(), "", "", ""))
        name, bars, branch, channel = pending.pop()
        arrow = f"{channel} → " if channel else ""
        again = name in drawn
        lines.append(f"{bars}{branch}{arrow}{titled(name)}{' (above)' if again else ''}")
        if again:
            continue
        drawn.add(name)
        below = bars + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
        children = list(graph.succ[name])
        if children and len(below) >= 3 * DEEPEST_BRANCH:
            lines[-1] += " (continues below)"
            drawn.discard(name)
            later.append(name)
            continue
        for child in reversed(children):
            last = child == children[-1]
            pending.append((child, below, "└─ " if last else "├─ ", sent(name, child)))
    return lines


def _titled(workflow: Workflow, name: str) -> str:
    node = workflow.nodes[name]
    times = f" × {node.map.over if isinstance(node.map.over, str) else len(node.map.over)}" if node.map else ""
    return f"{address(name)} · {node.doer}{times}{_rounds(workflow, name)}"


def _rounds(workflow: Workflow, name: str) -> str:
    """Say in which loops a node is, and how often they run."""
    return "".join(f", at most {most} rounds" for most in workflow.most_rounds(name))


def _escaped(text: str) -> str:
    """Write a text so that Mermaid shows it as it stands: anything unusual as its character code."""
    return "".join(c if c.isalnum() or c in " _-." else f"#{ord(c)};" for c in text)
