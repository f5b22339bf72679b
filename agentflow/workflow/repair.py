"""A second look at a file of the wrong shape, so that one run reports the wrong names in it as well."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentflow.workflow.fields import Generation
from agentflow.workflow.groups import untagged
from agentflow.workflow.shapes import likely_key
from agentflow.workflow.written import WorkflowFile

_LOOSE = frozenset([*Generation.model_fields, "role", "system", "description"])
# With more mistakes than this, nobody misses those of a second look.
MOST_REPAIRS = 200
# What stands in for a whole part that is misshapen.
_STAND_INS: dict[str, Any] = {"inputs": "string", "outputs": ""}


def repaired(data: dict[Any, Any], errors: Iterable[ErrorDetails]) -> WorkflowFile | None:
    """Return the workflow without its misshapen settings, or None when the mistakes go deeper.

    Unknown keys are taken for what they were meant to be, or left out; wrong values that nothing else depends
    on are left out.
    """
    found = list(errors)
    if len(found) > MOST_REPAIRS:
        return None
    draft = copy.deepcopy(data)
    for error in found:
        path = untagged(error["loc"])
        if error["type"] == "missing":
            continue  # a misspelt key may explain it; if not, validation fails again
        if _stood_in(draft, path):
            continue
        holder = _holder(draft, path)
        if not isinstance(holder, dict) or path[-1] not in holder:
            return None
        if error["type"] == "extra_forbidden":
            value = holder.pop(path[-1])
            meant = likely_key(error["loc"])
            if meant:
                holder.setdefault(meant, value)
        elif path[0] in ("agents", "nodes", "defaults", "description") and path[-1] in _LOOSE:
            del holder[path[-1]]
        else:
            return None
    try:
        return WorkflowFile.model_validate(draft)
    except ValidationError:
        return None


def _stood_in(draft: dict[Any, Any], path: tuple[int | str, ...]) -> bool:
    """Replace a misshapen name, input, output, task or channel by one that is right and says nothing."""
    match path:
        case ("workflow",):
            draft["workflow"] = "unnamed"
        case ("task", *_):
            draft.pop("task", None)
        case ("inputs" | "outputs" as part, str() as name, *_) if isinstance(draft.get(part), dict):
            draft[part][name] = _STAND_INS[part]
        case ("edges", int() as number, "channel", *_) if isinstance(draft.get("edges"), list):
            draft["edges"][number]["channel"] = "text"
        case _:
            return False
    return True


def _holder(data: Any, path: tuple[int | str, ...]) -> Any:
    for step in path[:-1]:
        try:
            data = data[step]
        except (LookupError, TypeError):
            return None
    return data
