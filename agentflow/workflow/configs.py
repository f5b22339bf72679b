"""Config files: YAML below `configs/`, validated by the pydantic model of whoever owns them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentflow.settings import faults
from agentflow.workflow.problems import Problem, described, fail, raise_problems
from agentflow.workflow.source import read_yaml

M = TypeVar("M", bound=BaseModel)


def load_config(path: Path, model: type[M]) -> M:
    """Read `path` as a `model`.

    Raises:
        WorkflowError: every problem with file, line and column.
    """
    source = read_yaml(path)
    if not isinstance(source.value, dict):
        fail(source.location(()), f"this file holds a mapping, not {described(source.value)}")
    try:
        return model.model_validate(source.value)
    except ValidationError as error:
        raise_problems(
            Problem(source.location(fault.path, fault.is_key), fault.path, fault.what, fault.fix)
            for fault in faults(error, model, source.value)
        )
