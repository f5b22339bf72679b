"""Loops and sub-workflows unfolded: from the tree of bodies as written to one graph of plain nodes.

A loop becomes its rounds, `act[0]/actor`, `act[1]/actor` and so on up to `max`; a sub-workflow its nodes, `sub/reader`.
All that runs, resumes and draws a workflow sees plain nodes and edges.
"""

from __future__ import annotations

from itertools import pairwise

from agentflow.workflow.fields import Generation
from agentflow.workflow.frames import Body, Frame, address
from agentflow.workflow.groups import Loop, SubWorkflow
from agentflow.workflow.layout import Layout
from agentflow.workflow.location import KeyPath
from agentflow.workflow.meaning import Needs
from agentflow.workflow.parts import Agent, AnyNode, Edge, Node, ToolNode
from agentflow.workflow.schema import Workflow

Ends = tuple[list[str], list[str]]
"""The nodes that a part of the graph begins with, and those that it ends with."""


class Expansion:
    """A file unfolded, with all that is in it.

    Args:
        most_rounds: of each loop. Two show all that checks have to see: what is so in the second is so in later ones.

    Attributes:
        borrowed: what a loop or sub-workflow waits for because its `when`, `until` or `inputs` look at it: the node
            and one that waits for it, and where that is written.
    """

    def __init__(self, body: Body, most_rounds: int | None = None) -> None:
        self._most = most_rounds
        self.needs = Needs()
        self.nodes: dict[str, AnyNode] = {}
        self.edges: list[Edge] = []
        self.agents: dict[str, Agent] = dict(body.file.agents)
        self.borrowed: dict[tuple[str, str], tuple[Body, KeyPath]] = {}
        self.layout = Layout(Frame(body))
        self._fill(self.layout.top, Generation())
        self._join(self.layout.top)

    def workflow(self, *, with_task: bool = True) -> Workflow:
        """Return the workflow as it runs; without its task where that has not been checked."""
        file = self.layout.top.body.file
        parts = {name: getattr(file, name) for name in type(file).model_fields}
        if not with_task:
            parts["task"] = None
        elif file.task is not None and file.task.answer is not None:
            answer = self._sender(self.layout.top, file.task.answer.split("."))
            parts["task"] = file.task.model_copy(update={"answer": answer})
        parts |= {"nodes": self.nodes, "edges": tuple(self.edges), "agents": self.agents}
        return Workflow.model_construct(file.model_fields_set, **parts).laid_out(self.layout)

    # -- nodes --------------------------------------------------------------------------------------------

    def _fill(self, frame: Frame, defaults: Generation) -> None:
        """Put a frame's nodes into the workflow, and all rounds and sub-workflows in it."""
        for name, node in frame.body.nodes.items():
            full = frame.prefix + name
            if isinstance(node, Loop):
                inside = frame.inner[name] = []
                for number in range(min(node.loop.max, self._most or node.loop.max)):
                    prefix = f"{full}[{number}]/"
                    inside.append(Frame(frame.body.inner[name], prefix, frame, name, number, frame.agents))
                    self._fill(inside[-1], defaults)
            elif isinstance(node, SubWorkflow):
                made = Frame(frame.body.inner[name], f"{full}/", frame, name, agents=f"{address(full)}/")
                frame.inner[name] = [made]
                own = made.body.file.defaults.over(defaults)
                self._adopt(made, own)
                self._fill(made, own)
            else:
                if frame.agents and isinstance(node, Node):
                    node = node.model_copy(update={"agent": frame.agents + node.agent})  # noqa: PLW2901
                self.nodes[full] = node
                self.layout.frames[full] = frame

    def _adopt(self, frame: Frame, defaults: Generation) -> None:
        """Take over the agents of a sub-workflow, with its defaults."""
        for name, agent in frame.body.file.agents.items():
            self.agents[frame.agents + name] = agent.model_copy(update=agent.over(defaults).settings)
            self.layout.agents[frame.agents + name] = (frame.body, name)

    # -- edges --------------------------------------------------------------------------------------------

    def _join(self, frame: Frame) -> Ends:
        """Draw the edges of a frame; return the nodes that it begins and ends with."""
        ends = {name: self._ends(frame, name) for name in frame.body.nodes}
        told: set[str] = set()
        telling: set[str] = set()
        for name in frame.inner:
            for first in self._borrow(frame, name, ends[name][0]):
                if first.startswith(frame.prefix):
                    told.update(ends[name][0])
                    telling.add(first)
        for number, edge in enumerate(frame.body.edges):
            goes_back = frame.body.goes_back(edge)
            origin = frame.previous if goes_back else frame
            if origin is None:
                continue
            sender = self._sender(origin, edge.sender.split("."))
            for receiver in self._receivers(frame, edge.receiver.split("."), edge.rounds):
                self._draw(frame.body, number, edge, sender, receiver)
                if not goes_back:
                    told.add(receiver)
                    telling.add(sender)
        heads = [node for first, _ in ends.values() for node in first if node not in told]
        tails = [node for _, last in ends.values() for node in last if node not in telling]
        return heads, tails

    def _ends(self, frame: Frame, name: str) -> Ends:
        if name not in frame.inner:
            return [frame.prefix + name], [frame.prefix + name]
        ends = [self._join(inner) for inner in frame.inner[name]]
        for (_, tails), (heads, _) in pairwise(ends):
            for head in heads:
                self._wait(head, tails)
        return ends[0][0], ends[-1][1]

    def _borrow(self, frame: Frame, name: str, heads: list[str]) -> set[str]:
        """Let a loop or sub-workflow wait for what its own templates look at."""
        found: set[str] = set()
        for key, nodes in self.needs.borrowed(frame.inner[name][0]):
            for head in heads:
                self._wait(head, sorted(nodes))
            place = (frame.body, frame.body.node_path(name, *key))
            self.borrowed.update({(node, head): place for node in nodes for head in heads})
            found |= nodes
        return found

    def _wait(self, node: str, others: list[str]) -> None:
        if others:
            known = self.layout.after.setdefault(node, [])
            known += [other for other in others if other not in known]

    def _draw(self, body: Body, number: int, edge: Edge, sender: str, receiver: str) -> None:
        is_fixed = edge.fixed or any(isinstance(self.nodes[end], ToolNode) for end in (sender, receiver))
        told = {"sender": sender, "receiver": receiver, "fixed": is_fixed}
        is_plain = (edge.sender, edge.receiver, edge.fixed) == tuple(told.values())
        self.edges.append(edge if is_plain else edge.model_copy(update=told))
        self.layout.edges.append((body, number))

    def _sender(self, frame: Frame, parts: list[str]) -> str:
        """Return the node that an address means as a sender: out of loops, that of the last round."""
        name, *rest = parts
        if name not in frame.inner:
            return frame.prefix + name
        last = frame.inner[name][-1]
        return self._sender(last, rest or last.body.ends)

    def _receivers(self, frame: Frame, parts: list[str], rounds: str) -> list[str]:
        name, *rest = parts
        if name not in frame.inner:
            return [frame.prefix + name]
        inside = frame.inner[name][: 1 if rounds == "first" else None]
        return [node for inner in inside for node in self._receivers(inner, rest or inner.body.begins, rounds)]
