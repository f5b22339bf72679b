"""How a workflow was unfolded: the way back from its nodes, edges and agents to where they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentflow.workflow.frames import Body, Frame
from agentflow.workflow.location import KeyPath
from agentflow.workflow.origins import Origins
from agentflow.workflow.source import Source


@dataclass(frozen=True)
class Layout:
    """The places of an expanded workflow.

    Attributes:
        top: the frame of the whole workflow.
        frames: that each node stands in.
        after: nodes that must have ended before a node begins, though they send it nothing.
        edges: where each was written: the body, and its number there.
        agents: of sub-workflows: their body, and the name there.
    """

    top: Frame = field(compare=False)
    frames: dict[str, Frame] = field(default_factory=dict, compare=False)
    after: dict[str, list[str]] = field(default_factory=dict)
    edges: list[tuple[Body, int]] = field(default_factory=list, compare=False)
    agents: dict[str, tuple[Body, str]] = field(default_factory=dict, compare=False)

    @property
    def origins(self) -> Origins:
        """Of the workflow's own file."""
        return self.top.body.origins

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every file that was read, the workflow's own first."""
        found = [source for body in _files(self.top.body) for source in body.origins.sources]
        return tuple({source.file: source for source in found}.values())

    def local(self, node: str) -> str:
        """Return a node's name in its body."""
        return node[len(self.frames[node].prefix) :]

    def written(self, path: KeyPath) -> tuple[Origins, KeyPath]:
        """Return the file that a part of the workflow is written in, and its path there."""
        match path:
            case ("nodes", str() as node, *inner) if node in self.frames:
                body = self.frames[node].body
                return body.origins, body.node_path(self.local(node), *inner)
            case ("edges", int() as number, *inner) if number < len(self.edges):
                body, own = self.edges[number]
                return body.origins, (*body.path, "edges", own, *inner)
            case ("agents", str() as name, *inner) if name in self.agents:
                body, own_name = self.agents[name]
                return body.origins, ("agents", own_name, *inner)
        return self.origins, path

    def exits(self, node: str) -> list[str]:
        """Return a node in the last round of each loop around it, the innermost first: so it leaves the loop."""
        found = []
        for frame in self._rounds(node):
            rounds = frame.outer.inner[frame.name] if frame.outer else [frame]
            last = rounds[-1].prefix + node[len(frame.prefix) :]
            if last != node:
                found.append(last)
            node = last
        return found

    def predecessors(self, node: str) -> list[str]:
        """Return the same node in the round before, which it may have to stand for at the end of the loop.

        Of a loop in a loop, only what leaves the inner one can leave the outer one.
        """
        found = []
        for frame in self._rounds(node):
            if frame.previous is not None:
                found.append(frame.previous.prefix + node[len(frame.prefix) :])
            if frame.outer is not None and frame is not frame.outer.inner[frame.name][-1]:
                break
        return found

    def _rounds(self, node: str) -> list[Frame]:
        """Return the rounds that a node is in, the innermost first."""
        frames = self.frames[node].chain if node in self.frames else []
        return [frame for frame in reversed(frames) if frame.number is not None]


def _files(body: Body) -> Iterator[Body]:
    """Give the bodies of all files, each once."""
    seen: set[int] = set()
    pending = [body]
    while pending:
        found = pending.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if found.loop is None:
            yield found
        pending += reversed(found.inner.values())
