"""A workflow as the rest of the package sees it: complete, checked, and able to say where it was written."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Self

from pydantic import PrivateAttr

from agentflow.workflow.fields import Generation
from agentflow.workflow.frames import address
from agentflow.workflow.layout import Layout
from agentflow.workflow.location import KeyPath, Location
from agentflow.workflow.parts import AnyNode, ChannelSpec, MemorySpec, Node, ToolNode
from agentflow.workflow.problems import Problem
from agentflow.workflow.source import Source
from agentflow.workflow.written import Sections


class Workflow(Sections[AnyNode]):
    """A workflow as it runs: loops and sub-workflows are unfolded into plain nodes.

    Load one with `load_workflow`; its checks (unknown names, cycles, templates) are not repeated here.
    """

    _layout: Layout | None = PrivateAttr(default=None)

    @cached_property  # asked for many times a node, and pydantic is slow to find what is private
    def layout(self) -> Layout:
        """How it was unfolded. Raises `ValueError` for one that no file was read for."""
        if self._layout is None:
            raise ValueError("this workflow was not loaded from a file or a text")
        return self._layout

    @property
    def file(self) -> str:
        """The file it was read from, or "<workflow>"."""
        return self._layout.origins.main.file if self._layout else "<workflow>"

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every file that was read for it, its own first."""
        return self._layout.sources if self._layout else ()

    def location(self, path: KeyPath, key: bool = False) -> Location:
        """Return where a value was written (or its key), following loops, other files and defaults."""
        if self._layout is None:
            return Location(self.file, 1, 1)
        origins, written = self._layout.written(path)
        return origins.location(written, key)

    def problem(self, path: KeyPath, what: str, fix: str = "", key: bool = False) -> Problem:
        """Return a problem at that place; raise several together with `raise_problems`."""
        if self._layout is None:
            return Problem(self.location(path), path, what, fix)
        origins, written = self._layout.written(path)
        return origins.problem(written, what, fix, key)

    def waits_for(self, node: str) -> Iterable[str]:
        """Return nodes that end before a node begins, though they send it nothing: those of the round before."""
        layout = self._layout
        return layout.after.get(node, ()) if layout else ()

    def most_rounds(self, node: str) -> list[int]:
        """Return how often each loop around a node may run, the outermost first."""
        chain = self._layout.frames[node].chain if self._layout else []
        return [frame.body.loop.max for frame in chain if frame.body.loop is not None]

    def members(self, name: str) -> list[str]:
        """Return the nodes that a name means: one, or all of a loop, a sub-workflow, or a node in all rounds."""
        if name in self.nodes:
            return [name]
        below = f"{name}."
        return [node for node in self.nodes if (written := address(node)) == name or written.startswith(below)]

    def effective(self, node: str) -> Generation:
        """Return how an agent's node generates: its own settings over its agent's over the defaults."""
        chosen = self.agent_node(node)
        return chosen.over(self.agents[chosen.agent].over(self.defaults))

    def memory_of(self, node: str) -> MemorySpec | None:
        """Return the memory of an agent's node; None where nothing is said."""
        return self.agents[self.agent_node(node).agent].memory

    def agent_node(self, node: str) -> Node:
        """Return a node that an agent takes; `TypeError` for a tool's, which callers tell apart before."""
        found = self.nodes[node]
        if not isinstance(found, Node):
            raise TypeError(f"'{node}' is the node of a tool")
        return found

    def is_tool(self, node: str) -> bool:
        """Whether a tool does a node's work."""
        return isinstance(self.nodes[node], ToolNode)

    def with_channel(self, spec: str | dict[str, Any] | ChannelSpec) -> Self:
        """Return the same workflow with every message on another channel, but for edges that are `fixed`."""
        channel = ChannelSpec.of(spec)
        edges = tuple(edge if edge.fixed else edge.model_copy(update={"channel": channel}) for edge in self.edges)
        return self.model_copy(update={"edges": edges})

    def laid_out(self, layout: Layout) -> Self:
        """Remember where everything was written (used by the loader)."""
        self._layout = layout
        return self
