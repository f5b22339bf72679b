"""The values a caller gives to a workflow, checked against what it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentflow.errors import UserError
from agentflow.workflow.problems import described, quoted, suggestion
from agentflow.workflow.schema import Workflow

WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "list": "a list",
    "mapping": "a mapping",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "list": (list, tuple),
    "mapping": (dict,),
}


def fits(kind: str, value: Any) -> bool:
    """Whether a value is of an input's type; true and false are no numbers."""
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def resolve_inputs(workflow: Workflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for every declared input: the one given, else its default.

    Raises `UserError` that names every unknown, missing or mistyped input; values are not converted.
    """
    complaints: list[str] = []
    explained: set[str] = set()
    for name in given:
        if name not in workflow.inputs:
            advice = suggestion(str(name), workflow.inputs) or "The workflow takes no inputs."
            complaints.append(f"unknown input {quoted(name)}. {advice}")
            explained.update(known for known in workflow.inputs if f"'{known}'" in advice)
    values: dict[str, Any] = {}
    for name, spec in workflow.inputs.items():
        value = given.get(name, spec.default)
        if name in given and not fits(spec.type, value):
            complaints.append(f"the input '{name}' must be {WORDS[spec.type]}, got {described(value)}.")
        elif name not in given and spec.required and name not in explained:
            hint = f" ({spec.description})" if spec.description else ""
            complaints.append(f"the input '{name}' is missing: {WORDS[spec.type]}{hint}.")
        values[name] = value
    if complaints:
        raise UserError("\n".join(complaints), where=f"inputs of {workflow.name}")
    return values
