"""Inputs of a workflow from the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.workflow.schema import Workflow


def read_inputs(workflow: Workflow, pairs: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Inputs from a JSON file, overridden by NAME=VALUE pairs.

    A VALUE is taken as it stands where the workflow wants text, and read as JSON anywhere else. What does not fit
    the workflow's inputs is not looked at here: `resolve_inputs` does.

    Raises:
        UserError: the file or a pair can't be read.
    """
    given = {} if file is None else _from_file(file)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(
                f"'{pair}' is not NAME=VALUE.", where="--input", fix='Write --input question="Who wrote it?".'
            )
        spec = workflow.inputs.get(name)
        given[name] = value if spec is None or spec.type == "string" else _value(name, value, spec.type)
    _check_text(given)
    return given


def _value(name: str, text: str, kind: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(
            f"The input '{name}' is a {kind}, and '{text}' is not JSON.",
            where="--input",
            fix=f"Write {_EXAMPLES[kind].format(name=name)}",
        ) from None


_EXAMPLES = {
    "integer": "--input {name}=3.",
    "number": "--input {name}=0.5.",
    "boolean": "--input {name}=true.",
    "list": '--input \'{name}=["one", "two"]\'.',
    "mapping": '--input \'{name}={{"key": "value"}}\'.',
}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The inputs can't be read: {error.strerror}.", where=str(file)) from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"The inputs are not JSON: {error.msg}.", where=f"{file}:{error.lineno}:{error.colno}"
        ) from None
    except (ValueError, RecursionError):
        raise UserError("The inputs are not JSON in UTF-8, or nested too deeply.", where=str(file)) from None
    if not isinstance(given, dict):
        raise UserError("The inputs must be a JSON object: {name: value}.", where=str(file))
    return given


def _check_text(given: dict[str, Any]) -> None:
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError("An input holds characters that are no valid Unicode.", fix="Save it as UTF-8.") from None
