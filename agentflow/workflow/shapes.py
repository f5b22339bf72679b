"""Pydantic's complaints about the shape of a file, as problems at their places in plain words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from agentflow.errors import did_you_mean
from agentflow.workflow.fields import NAME_RULE, OWN_ERROR
from agentflow.workflow.groups import LOOP_TAG, SUB_TAG, Loop, LoopSpec, SubWorkflow, untagged
from agentflow.workflow.location import KeyPath
from agentflow.workflow.origins import Origins
from agentflow.workflow.parts import (
    AGENT_TAG,
    TOOL_TAG,
    Agent,
    Defaults,
    Edge,
    InputSpec,
    MapSpec,
    Node,
    OnError,
    OutputSpec,
    RetrySpec,
    ToolNode,
)
from agentflow.workflow.problems import Problem, described, quoted
from agentflow.workflow.scalars import plain
from agentflow.workflow.written import WorkflowFile

_ANY = "*"
# Finding the closest of many names takes time; nobody reads more than twenty problems.
_MOST_ADVICE = 50
_MODELS: dict[KeyPath, type[BaseModel]] = {
    (): WorkflowFile,
    ("inputs", _ANY): InputSpec,
    ("defaults",): Defaults,
    ("agents", _ANY): Agent,
    ("nodes", _ANY, AGENT_TAG): Node,
    ("nodes", _ANY, AGENT_TAG, "map"): MapSpec,
    ("nodes", _ANY, AGENT_TAG, "retry"): RetrySpec,
    ("nodes", _ANY, AGENT_TAG, "on_error"): OnError,
    ("nodes", _ANY, TOOL_TAG): ToolNode,
    ("nodes", _ANY, AGENT_TAG, "output"): OutputSpec,
    ("nodes", _ANY, TOOL_TAG, "map"): MapSpec,
    ("nodes", _ANY, TOOL_TAG, "retry"): RetrySpec,
    ("nodes", _ANY, TOOL_TAG, "on_error"): OnError,
    ("nodes", _ANY, LOOP_TAG): Loop,
    ("nodes", _ANY, LOOP_TAG, "loop"): LoopSpec,
    ("nodes", _ANY, SUB_TAG): SubWorkflow,
    ("edges", _ANY): Edge,
}

# The kind of value expected, by the start of pydantic's error type.
_EXPECTED = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "dict": "a mapping",
    "model": "a mapping",
    "list": "a list",
    "tuple": "a list",
}
# Text in quotes that would be right without them.
_NUMBERS = ("int", "float", "bool")
_HINTS: dict[KeyPath, str] = {
    ("agents",): "Write `agents: {name: {model: ..., system: ...}}`.",
    ("nodes",): "Write `nodes: {name: {agent: ..., prompt: ...}}`.",
    ("outputs",): 'Write `outputs: {answer: "{{ nodes.name.text }}"}`.',
    ("inputs",): "Write `inputs: {question: string}`.",
    ("edges",): "Write `edges: [{from: a, to: b}]`.",
    ("inputs", _ANY): "Write its type, such as `question: string`.",
    ("agents", _ANY): "Write `{use: agents/reader.yaml}` or `{model: ..., system: ...}`.",
    ("nodes", _ANY, AGENT_TAG): "Write `{agent: ..., prompt: ...}`.",
    ("nodes", _ANY, LOOP_TAG, "loop"): "Write `loop: {max: 5, until: ..., nodes: ..., edges: ...}`.",
    ("nodes", _ANY, SUB_TAG, "inputs"): 'Write `inputs: {question: "{{ inputs.question }}"}`.',
    ("edges", _ANY): "Write `{from: a, to: b}`.",
    ("nodes", _ANY, AGENT_TAG, "retry"): "Write `retry: 2` or `retry: {count: 2, wait: 1}`.",
    ("nodes", _ANY, AGENT_TAG, "map"): "Write `map: {over: inputs.name, as: item}`.",
}
# Where the nodes are that a group stands for.
_INSIDE: dict[KeyPath, str] = {
    ("nodes", _ANY, LOOP_TAG): "of the loop's body",
    ("nodes", _ANY, SUB_TAG): "in the workflow's own file",
}
# Keys that a part may have beside those of its model.
_MORE_KEYS: dict[type[BaseModel], tuple[str, ...]] = {
    WorkflowFile: ("extends",),
    Agent: ("use", "extends"),
    Node: ("tool", "loop", "workflow"),
}


def shape_problems(errors: Iterable[ErrorDetails], origins: Origins) -> list[Problem]:
    """Translate every error; a missing key is left out when a misspelt one explains it."""
    found = list(errors)
    unknown = [error for error in found if error["type"] == "extra_forbidden"]
    misspelt = {(error["loc"][:-1], likely) for error in unknown[:_MOST_ADVICE] if (likely := likely_key(error["loc"]))}
    hopeless = {id(error) for error in unknown[_MOST_ADVICE:]}
    return [
        _problem(error, origins, advise=id(error) not in hopeless)
        for error in found
        if not (error["type"] == "missing" and (error["loc"][:-1], error["loc"][-1]) in misspelt)
    ]


def likely_key(path: KeyPath) -> str | None:
    """Return the key that an unknown key at `path` was most likely meant to be."""
    advice = did_you_mean(str(path[-1]), allowed_keys(path[:-1]))
    return advice.split("'")[1] if advice.startswith("Did you mean") else None


def allowed_keys(path: KeyPath) -> list[str]:
    """Return the keys that the mapping at `path` may hold."""
    model = _MODELS.get(_shape(path))
    if model is None:
        return []
    keys = [info.alias or name for name, info in model.model_fields.items()]
    if model is OnError:
        return ["fallback"]  # what the short forms stand for is not written
    return [*keys, *_MORE_KEYS.get(model, ())]


def _shape(path: KeyPath) -> KeyPath:
    """Return a place without its names, and without the loops around it."""
    while path[2:4] == (LOOP_TAG, "loop") and path[4:5] in (("nodes",), ("edges",)):
        path = path[4:]
    is_entry = len(path) > 1 and path[0] in ("inputs", "agents", "nodes", "edges")
    return (path[0], _ANY, *path[2:]) if is_entry else path


def _problem(error: ErrorDetails, origins: Origins, advise: bool = True) -> Problem:
    tagged, kind = error["loc"], error["type"]
    path = untagged(tagged)
    if path and path[-1] == "[key]":
        path = path[:-1]
        what, fix = _own(error) if kind == OWN_ERROR else (f"{described(error['input'])} is no name", NAME_RULE)
        return origins.problem(path, what, fix, key=True)
    if kind == "extra_forbidden":
        fix = _belongs_inside(tagged) or (did_you_mean(str(path[-1]), allowed_keys(tagged[:-1])) if advise else "")
        return origins.problem(path, f"unknown key {quoted(path[-1])}", fix, key=True)
    if kind == "invalid_key":
        return origins.problem(path, "a key must be text here", "Put it in quotes.", key=True)
    if kind == "missing":
        return _missing(path, origins)
    what, fix = _own(error) if kind == OWN_ERROR else _wrong_value(error)
    return origins.problem(path, what, fix)


def _belongs_inside(path: KeyPath) -> str:
    """Return where to write a key that is a node's, and stands at a loop or a sub-workflow; "" for any other."""
    inside = _INSIDE.get(_shape(path[:-1]))
    is_nodes = path[-1] in Node.model_fields or path[-1] in ToolNode.model_fields
    return f"Write it at the nodes {inside} that need it." if inside and is_nodes else ""


def _own(error: ErrorDetails) -> tuple[str, str]:
    context = error.get("ctx", {})
    return str(context.get("what", error["msg"])), str(context.get("fix", ""))


def _missing(path: KeyPath, origins: Origins) -> Problem:
    inside, name = path[:-1], str(path[-1])
    fix = f"Add `{name}: ...`."
    if _shape(inside) == ("agents", _ANY) and name == "model":
        fix = "Add `model: ...` here, in its agent file, or below `defaults:`."
    by_name = bool(inside) and isinstance(inside[-1], str)
    return origins.problem(inside, f"the key {quoted(name)} is missing", fix, key=by_name)


def _wrong_value(error: ErrorDetails) -> tuple[str, str]:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "literal_error":
        options = [part.strip("'") for part in str(context["expected"]).replace(" or ", ", ").split(", ")]
        close = did_you_mean(str(value), options)
        return f"expected one of {', '.join(options)}, got {described(value)}", (
            close if close.startswith("Did") else ""
        )
    bound = _bound(kind, context)
    if bound:
        return f"expected a number {bound}, got {described(value)[len('the number ') :]}", ""
    if kind == "finite_number":
        return f"expected a finite number, got {described(value)[len('the number ') :]}", ""
    stem = kind.split("_")[0]
    if kind.endswith("_type") and stem in _EXPECTED:
        return f"expected {_EXPECTED[stem]}, got {described(value)}", _type_fix(stem, value, error["loc"])
    message = error["msg"]
    return f"{message[:1].lower()}{message[1:]}", ""


def _bound(kind: str, context: dict[str, Any]) -> str:
    words = {
        "greater_than_equal": ("ge", "of at least"),
        "greater_than": ("gt", "greater than"),
        "less_than_equal": ("le", "of at most"),
        "less_than": ("lt", "less than"),
    }
    if kind not in words:
        return ""
    key, phrase = words[kind]
    return f"{phrase} {context[key]:g}"


def _type_fix(stem: str, value: Any, path: KeyPath) -> str:
    if stem == "string" and isinstance(value, int | float):
        return "Put it in quotes."
    if stem in _NUMBERS and isinstance(value, str) and _reads_as(stem, value):
        return "Remove the quotes."
    if stem == "bool":
        return "Write true or false."
    if stem == "string" and isinstance(value, dict) and len(value) == 1:
        return "Put text that contains ':' or starts with '{' in quotes."
    return _HINTS.get(_shape(path), "")


def _reads_as(stem: str, value: str) -> bool:
    try:
        kind = type(plain(value))
    except ValueError:
        return False
    return kind is {"bool": bool, "int": int}.get(stem, float) or (stem == "float" and kind is int)
