"""Nodes that stand for others: a loop with its body, and another workflow used as a node."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

from agentflow.workflow.fields import Name, NonEmpty, StrictModel, mistake
from agentflow.workflow.parts import AGENT_TAG, TOOL_TAG, Edge, Node, ToolNode, kind_of_node
from agentflow.workflow.problems import quoted

MOST_ROUNDS = 1000
# Pydantic puts the kind of a node behind its name when it says where an error stands. No key of a file is one of these.
LOOP_TAG, SUB_TAG = "«loop»", "«workflow»"
TAGS = frozenset([AGENT_TAG, TOOL_TAG, LOOP_TAG, SUB_TAG])


def _body_name(value: str) -> str:
    if value == "rounds":
        raise mistake(f"{quoted(value)} already means the rounds of a loop", "Choose another name.")
    return value


def _at_least_one(nodes: dict[str, Any]) -> dict[str, Any]:
    if nodes:
        return nodes
    raise mistake("a loop needs at least one node")


class LoopSpec(StrictModel):
    """The body of a loop: run again and again, until an expression says so or `max` rounds are done."""

    max: int = Field(ge=1, le=MOST_ROUNDS)
    until: NonEmpty | None = None
    nodes: Annotated[
        dict[Annotated[Name, AfterValidator(_body_name)], WrittenNode],
        AfterValidator(_at_least_one),
    ]
    edges: tuple[Edge, ...] = ()


class Loop(StrictModel):
    """A node that repeats a body of nodes."""

    loop: LoopSpec
    when: NonEmpty | None = None
    description: str = ""


class SubWorkflow(StrictModel):
    """A node that stands for all nodes of another workflow."""

    workflow: NonEmpty
    inputs: dict[str, Any] = Field(default_factory=dict)
    when: NonEmpty | None = None
    description: str = ""


Group = Loop | SubWorkflow


def _kind(data: Any) -> str:
    """Which kind of node a mapping, or a node, is."""
    if isinstance(data, dict):
        return LOOP_TAG if "loop" in data else SUB_TAG if "workflow" in data else kind_of_node(data)
    return LOOP_TAG if isinstance(data, Loop) else SUB_TAG if isinstance(data, SubWorkflow) else kind_of_node(data)


WrittenNode = Annotated[
    Annotated[Node, Tag(AGENT_TAG)]
    | Annotated[ToolNode, Tag(TOOL_TAG)]
    | Annotated[Loop, Tag(LOOP_TAG)]
    | Annotated[SubWorkflow, Tag(SUB_TAG)],
    Discriminator(_kind),
]
LoopSpec.model_rebuild()
Loop.model_rebuild()


def untagged(path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return a place in the file without the kinds of nodes in it."""
    return tuple(step for step in path if step not in TAGS)
