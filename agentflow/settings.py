"""Settings that don't fit, in plain words: what pydantic found, without its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from agentflow.errors import did_you_mean

_WANTED = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be a text",
    "list": "must be a list",
    "dict": "must be a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def explain(error: ValidationError, settings: type[BaseModel]) -> str:
    """Return one sentence per wrong setting, joined by "; "."""
    return "; ".join(sentence(dict(problem), settings) for problem in error.errors()) + "."


def sentence(problem: Mapping[str, Any], settings: type[BaseModel]) -> str:
    """Return one wrong setting in words; `problem` is one of pydantic's error details."""
    kind, found = str(problem["type"]), problem.get("input")
    context: Mapping[str, Any] = problem.get("ctx") or {}
    name = ".".join(str(part) for part in problem["loc"])
    if kind == "extra_forbidden":
        hint = did_you_mean(name, settings.model_fields).rstrip(".")
        return f"unknown setting '{name}' ({hint[:1].lower()}{hint[1:] or 'there are none'})"
    if kind == "value_error":
        text = str(context.get("error", problem["msg"])).rstrip(".")
        return f"setting '{name}' {text}" if name else text
    return f"setting '{name}' {_requirement(kind, context, str(problem['msg']))}, not {found!r}"


def _requirement(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {context[key]}"
    return _WANTED.get(kind.partition("_")[0], f"is wrong ({message})")
