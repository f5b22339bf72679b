"""Answers in JSON: the schemas that a workflow writes, and whether an answer is what one asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from agentflow.workflow.location import KeyPath, shown_path
from agentflow.workflow.problems import quoted

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_REFERENCES = ("$ref", "$dynamicRef")
LONGEST_ERROR = 300


class AnswerError(ValueError):
    """An answer that is not what its schema asks for; the message says why, in words that can be sent back."""


def schema_mistakes(schema: dict[str, Any]) -> Iterator[tuple[KeyPath, str, str]]:
    """Give what is wrong with a schema: the place in it, what, and how to mend it."""
    from jsonschema import Draft202012Validator

    if schema.get("$schema", _DRAFT) != _DRAFT:
        yield ("$schema",), "only schemas of draft 2020-12 are read", f"Write {_DRAFT}, or remove it."
        return
    found = list(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema))
    for error in found:
        yield tuple(error.absolute_path), f"no valid JSON Schema: {_short(error.message)}", ""
    if not found:
        yield from _references(schema, schema, ())


def parse_answer(text: str, schema: dict[str, Any]) -> Any:
    """Return the JSON that an answer is: all of it, or the first fenced block in it.

    Raises:
        AnswerError: it is no JSON, or the schema does not allow it.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    block = _FENCED.search(text)
    try:
        value = json.loads(block[1] if block else text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        what = f"it is no JSON: {error.msg[:1].lower()}{error.msg[1:]} at line {error.lineno}, column {error.colno}"
        raise AnswerError(what) from None
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"it is no JSON: {error}") from None
    try:
        wrong = best_match(Draft202012Validator(schema).iter_errors(value))
    except RecursionError:
        raise AnswerError("it is nested too deeply") from None
    if wrong is not None:
        place = shown_path(tuple(wrong.absolute_path))
        raise AnswerError(f"{f'at {place}: ' if place else ''}{_short(wrong.message)}")
    return value


def _references(part: Any, schema: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str, str]]:
    """Refuse references out of the schema, and those that lead nowhere."""
    if isinstance(part, list):
        for number, inner in enumerate(part):
            yield from _references(inner, schema, (*path, number))
    if not isinstance(part, dict):
        return
    for key, inner in part.items():
        if key in ("const", "enum", "default", "examples"):
            continue  # values, not schemas
        if key in _REFERENCES and isinstance(inner, str):
            if not _resolves(inner, schema):
                fix = "Write `#/$defs/NAME`, and the schema of that name below `$defs:`."
                yield (*path, key), f"{quoted(inner)} is not in this schema", fix
        else:
            yield from _references(inner, schema, (*path, key))


def _resolves(reference: str, schema: Any) -> bool:
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    part = schema
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdigit() and int(name) < len(part):
            part = part[int(name)]
        else:
            return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _short(message: str) -> str:
    return message if len(message) <= LONGEST_ERROR else message[: LONGEST_ERROR - 1] + "…"
