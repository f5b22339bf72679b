"""A workflow as the rest of the package sees it: complete, checked, and able to say where it was written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PrivateAttr, WithJsonSchema, model_validator

from agentflow.workflow.fields import Generation, Name, StrictModel, mistake
from agentflow.workflow.location import KeyPath, Location
from agentflow.workflow.origins import Origins
from agentflow.workflow.parts import (
    TOOL_TAG,
    Agent,
    AnyNode,
    ChannelSpec,
    Defaults,
    Edge,
    InputSpec,
    Node,
    TaskSpec,
    ToolNode,
    kind_of_node,
)
from agentflow.workflow.problems import Problem, quoted
from agentflow.workflow.source import Source

DEFAULT_CHANNEL = "text"


def _workflow_name(value: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value):
        return value
    raise mistake(
        f"{quoted(value)} is not a valid name of a workflow",
        "Use letters, digits, '_' and '-', and start with a letter.",
    )


def _at_least_one(nodes: dict[str, AnyNode]) -> dict[str, AnyNode]:
    if nodes:
        return nodes
    raise mistake("a workflow needs at least one node")


class Workflow(StrictModel):
    """A whole workflow file, with agent files read and defaults filled in.

    Load one with `load_workflow`; its checks (unknown names, cycles, templates) are not repeated here.
    """

    name: Annotated[
        str,
        AfterValidator(_workflow_name),
        WithJsonSchema({"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_-]*$"}),
    ] = Field(alias="workflow")
    description: str = ""
    inputs: dict[Name, InputSpec] = Field(default_factory=dict)
    defaults: Defaults = Field(default_factory=Defaults)
    agents: dict[Name, Agent]
    nodes: Annotated[dict[Name, AnyNode], AfterValidator(_at_least_one)]
    edges: tuple[Edge, ...] = ()
    outputs: dict[Name, str] = Field(default_factory=dict)
    task: TaskSpec | None = None

    _origins: Origins | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, data: Any) -> Any:
        return with_defaults(data) if isinstance(data, dict) else data

    @property
    def file(self) -> str:
        """The file it was read from, or "<workflow>"."""
        return self._origins.main.file if self._origins else "<workflow>"

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every file that was read for it, its own first."""
        return self._origins.sources if self._origins else ()

    def location(self, path: KeyPath, key: bool = False) -> Location:
        """Return where a value was written (or its key), following agent files and defaults."""
        if self._origins is None:
            return Location(self.file, 1, 1)
        return self._origins.location(path, key)

    def problem(self, path: KeyPath, what: str, fix: str = "", key: bool = False) -> Problem:
        """Return a problem at that place; raise several together with `raise_problems`."""
        if self._origins is None:
            return Problem(self.location(path), path, what, fix)
        return self._origins.problem(path, what, fix, key)

    def effective(self, node: str) -> Generation:
        """Return how an agent's node generates: its own settings over its agent's over the defaults."""
        chosen = self.agent_node(node)
        return chosen.over(self.agents[chosen.agent].over(self.defaults))

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

    def placed(self, origins: Origins) -> Self:
        """Remember where everything was written (used by the loader)."""
        self._origins = origins
        return self


def with_defaults(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the raw mapping with `defaults.model` and `defaults.channel` written where they are missing.

    An edge at whose end a tool stands is fixed, and text where nothing else is written: there is no other cache.
    """
    filled = dict(data)
    found = data.get("defaults")
    defaults: Mapping[Any, Any] = found if isinstance(found, dict) else {}
    agents, edges, model = data.get("agents"), data.get("edges"), defaults.get("model")
    if isinstance(agents, dict) and model is not None:
        filled["agents"] = {name: _with(agent, "model", model) for name, agent in agents.items()}
    if edges is None:
        filled.pop("edges", None)
    elif isinstance(edges, list | tuple):
        channel, tools = defaults.get("channel") or DEFAULT_CHANNEL, _tool_nodes(data.get("nodes"))
        fixed = (_fixed(edge) if _touches(edge, tools) else edge for edge in edges)
        filled["edges"] = tuple(_with(edge, "channel", channel) for edge in fixed)
    for section in ("inputs", "outputs", "defaults", "task"):
        if filled.get(section, ...) is None:
            del filled[section]  # `inputs:` with nothing below it means none
    return filled


def _with(entry: Any, key: str, value: Any) -> Any:
    if isinstance(entry, dict) and entry.get(key) is None:
        return {**entry, key: value}
    return entry


def _tool_nodes(nodes: Any) -> set[str]:
    if not isinstance(nodes, dict):
        return set()
    return {name for name, node in nodes.items() if kind_of_node(node) == TOOL_TAG}


def _touches(edge: Any, names: set[str]) -> bool:
    if not isinstance(edge, dict):
        return False
    return any(isinstance(end := edge.get(key), str) and end in names for key in ("from", "to"))


def _fixed(edge: Any) -> Any:
    return _with({**edge, "fixed": True}, "channel", DEFAULT_CHANNEL)
