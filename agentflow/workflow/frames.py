"""What stands side by side in a file, and the places it has in the expanded workflow.

A `Body` is written: the nodes and edges of a file, or of a loop in it. A `Frame` is a body at one place of the expanded
workflow: `act[3]/` is the body of the loop `act` in its fourth round, `sub/` that of a sub-workflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from agentflow.workflow.groups import Group, Loop, LoopSpec, SubWorkflow, WrittenNode
from agentflow.workflow.location import KeyPath
from agentflow.workflow.origins import Origins
from agentflow.workflow.parts import Edge
from agentflow.workflow.written import WorkflowFile

_ROUND = re.compile(r"\[\d+\]")


@lru_cache(maxsize=65536)
def address(name: str) -> str:
    """Return how a node is named in the file: `outer[2]/act[3]/actor` is `outer.act.actor`, in whichever round."""
    return _ROUND.sub("", name).replace("/", ".")


@dataclass(frozen=True, eq=False)
class Body:
    """Nodes written side by side, and their edges.

    Attributes:
        file: that they are written in.
        path: of what holds `nodes` and `edges` in it: () or that of a loop.
        inner: bodies of loops and sub-workflows among the nodes; a file that can't be used is missing.
        loop: whose body it is; None for a file's.
    """

    file: WorkflowFile
    origins: Origins
    nodes: dict[str, WrittenNode]
    edges: tuple[Edge, ...]
    path: KeyPath = ()
    loop: LoopSpec | None = None
    inner: dict[str, Body] = field(default_factory=dict)

    def node_path(self, name: str, *inner: str | int) -> KeyPath:
        """Return the place of a node, or of something in it."""
        return (*self.path, "nodes", name, *inner)

    def scopes(self) -> Iterator[Body]:
        """Give this body, and those of all loops in the same file."""
        yield self
        for name, body in self.inner.items():
            if isinstance(self.nodes[name], Loop):
                yield from body.scopes()

    @cached_property
    def places(self) -> dict[str, int]:
        """The order in which the nodes are written."""
        return {name: number for number, name in enumerate(self.nodes)}

    def goes_back(self, edge: Edge) -> bool:
        """Whether an edge leads from one round to the next: in a loop, to the sender itself or to an earlier node."""
        sender, receiver = (end.partition(".")[0] for end in (edge.sender, edge.receiver))
        return self.loop is not None and self.places[sender] >= self.places[receiver]

    @cached_property
    def begins(self) -> list[str]:
        """The nodes to which nothing is sent in the same round."""
        told = {edge.receiver.partition(".")[0] for edge in self._inside}
        return [name for name in self.nodes if name not in told]

    @cached_property
    def ends(self) -> list[str]:
        """The nodes that send nothing in the same round."""
        telling = {edge.sender.partition(".")[0] for edge in self._inside}
        return [name for name in self.nodes if name not in telling]

    @cached_property
    def _inside(self) -> list[Edge]:
        ends = [(edge, edge.sender.partition(".")[0], edge.receiver.partition(".")[0]) for edge in self.edges]
        return [e for e, first, last in ends if first in self.nodes and last in self.nodes and not self.goes_back(e)]

    def walk(self, parts: list[str], *, outwards: bool) -> list[tuple[Body, str]] | None:
        """Follow an address such as `act.actor`, and return the bodies and names on the way; None where it is wrong.

        A loop or a sub-workflow stands for the one node it begins with, or `outwards` for the one it ends with.
        """
        body, way = self, []
        left = list(parts)
        while left:
            name = left.pop(0)
            if name not in body.nodes:
                return None
            way.append((body, name))
            if not isinstance(body.nodes[name], Loop | SubWorkflow):
                return None if left else way
            if name not in body.inner:
                return None
            body = body.inner[name]
            if not left:
                ends = body.ends if outwards else body.begins
                if len(ends) != 1:
                    return None
                left = ends[:]
        return None


@dataclass(eq=False)
class Frame:
    """A body at one place of the expanded workflow.

    Attributes:
        prefix: of its nodes' names.
        outer: the frame in which its loop or sub-workflow stands, under `name`; None for the whole workflow.
        number: of the round, from 0; None for a file's.
        inner: by name, the rounds of a loop, or the one frame of a sub-workflow.
        agents: prefix of its agents' names.
    """

    body: Body
    prefix: str = ""
    outer: Frame | None = None
    name: str = ""
    number: int | None = None
    agents: str = ""
    inner: dict[str, list[Frame]] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The name of the loop or sub-workflow whose frame it is."""
        return "" if self.outer is None else self.outer.prefix + self.name

    @property
    def step(self) -> Group | None:
        """The node that it is the inside of."""
        found = self.outer.body.nodes[self.name] if self.outer is not None else None
        return found if isinstance(found, Loop | SubWorkflow) else None

    @property
    def previous(self) -> Frame | None:
        """The round before this one."""
        return self.outer.inner[self.name][self.number - 1] if self.outer is not None and self.number else None

    @property
    def top(self) -> Frame:
        """The frame of the whole file that it is in."""
        frame = self
        while frame.number is not None and frame.outer is not None:
            frame = frame.outer
        return frame

    @property
    def chain(self) -> list[Frame]:
        """This frame and those around it, the outermost first."""
        found, frame = [self], self.outer
        while frame is not None:
            found.append(frame)
            frame = frame.outer
        return found[::-1]

    def find(self, name: str, at: str | None) -> tuple[Body | None, Frame | None]:
        """Return the body in which a name of a template of the node `at` stands, and the frame that is meant.

        In a loop a name that stands earlier in the body means this round's node, any other one the node of the
        round before: no frame in the first round. What the body does not hold is looked for around the loop.

        Args:
            at: None means after all nodes of the frame.
        """
        frame: Frame | None = self
        while frame is not None:
            places = frame.body.places
            if name in places:
                is_past = frame.number is None or at is None or places[name] < places[at]
                return frame.body, frame if is_past else frame.previous
            frame, at = (frame.outer, frame.name) if frame.number is not None else (None, None)
        return None, None

    @property
    def names(self) -> list[str]:
        """The names that templates can see here."""
        frame: Frame | None = self
        found: dict[str, None] = {}
        while frame is not None:
            found |= dict.fromkeys(frame.body.nodes)
            frame = frame.outer if frame.number is not None else None
        return list(found)
