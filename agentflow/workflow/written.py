"""A workflow file as it is written: the keys at its top, and the defaults filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from agentflow.workflow.fields import Name, StrictModel, mistake
from agentflow.workflow.groups import WrittenNode
from agentflow.workflow.parts import TOOL_TAG, Agent, Defaults, Edge, InputSpec, TaskSpec, kind_of_node
from agentflow.workflow.problems import quoted

DEFAULT_CHANNEL = "text"
N = TypeVar("N")


def _workflow_name(value: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value):
        return value
    raise mistake(
        f"{quoted(value)} is not a valid name of a workflow",
        "Use letters, digits, '_' and '-', and start with a letter.",
    )


def _at_least_one(nodes: dict[str, N]) -> dict[str, N]:
    if nodes:
        return nodes
    raise mistake("a workflow needs at least one node")


class Sections(StrictModel, Generic[N]):
    """The keys at the top of a workflow file."""

    name: Annotated[
        str,
        AfterValidator(_workflow_name),
        WithJsonSchema({"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_-]*$"}),
    ] = Field(alias="workflow")
    description: str = ""
    inputs: dict[Name, InputSpec] = Field(default_factory=dict)
    defaults: Defaults = Field(default_factory=Defaults)
    agents: dict[Name, Agent]
    nodes: Annotated[dict[Name, N], AfterValidator(_at_least_one)]
    edges: tuple[Edge, ...] = ()
    outputs: dict[Name, str] = Field(default_factory=dict)
    task: TaskSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, data: Any) -> Any:
        return with_defaults(data) if isinstance(data, dict) else data


class WorkflowFile(Sections[WrittenNode]):
    """A workflow as it is written, with agent files read and defaults filled in."""


def with_defaults(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the raw mapping with `defaults.model` and `defaults.channel` written where they are missing.

    An edge at whose end a tool stands is fixed, and text where nothing else is written: there is no other cache.
    """
    filled = dict(data)
    found = data.get("defaults")
    defaults: Mapping[Any, Any] = found if isinstance(found, dict) else {}
    agents, model = data.get("agents"), defaults.get("model")
    if isinstance(agents, dict) and model is not None:
        filled["agents"] = {name: _with(agent, "model", model) for name, agent in agents.items()}
    filled = _with_channels(filled, defaults.get("channel") or DEFAULT_CHANNEL)
    for section in ("inputs", "outputs", "defaults", "task"):
        if filled.get(section, ...) is None:
            del filled[section]  # `inputs:` with nothing below it means none
    return filled


def _with_channels(body: dict[Any, Any], channel: Any) -> dict[Any, Any]:
    """Fill in the channel of edges that name none, in loops as well."""
    filled = dict(body)
    nodes, edges = body.get("nodes"), body.get("edges")
    if edges is None:
        filled.pop("edges", None)
    elif isinstance(edges, list | tuple):
        tools = set(_tool_nodes(nodes))
        fixed = (_fixed(edge) if _touches(edge, tools) else edge for edge in edges)
        filled["edges"] = tuple(_with(edge, "channel", channel) for edge in fixed)
    if isinstance(nodes, dict):
        filled["nodes"] = {name: _with_loop(node, channel) for name, node in nodes.items()}
    return filled


def _with_loop(node: Any, channel: Any) -> Any:
    if isinstance(node, dict) and isinstance(node.get("loop"), dict):
        return {**node, "loop": _with_channels(node["loop"], channel)}
    return node


def _with(entry: Any, key: str, value: Any) -> Any:
    if isinstance(entry, dict) and entry.get(key) is None:
        return {**entry, key: value}
    return entry


def _tool_nodes(nodes: Any) -> Iterator[str]:
    """Give the addresses of all tools' nodes, in loops as well."""
    for name, node in nodes.items() if isinstance(nodes, dict) else ():
        loop = node.get("loop") if isinstance(node, dict) else None
        if isinstance(loop, dict):
            yield from (f"{name}.{inner}" for inner in _tool_nodes(loop.get("nodes")))
        elif kind_of_node(node) == TOOL_TAG:
            yield name


def _touches(edge: Any, names: set[str]) -> bool:
    if not isinstance(edge, dict):
        return False
    return any(isinstance(end := edge.get(key), str) and end in names for key in ("from", "to"))


def _fixed(edge: Any) -> Any:
    return _with({**edge, "fixed": True}, "channel", DEFAULT_CHANNEL)
