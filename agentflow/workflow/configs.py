"""Config files: YAML below `configs/`, validated by the pydantic model of whoever owns them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentflow.settings import faults
from agentflow.workflow import library
from agentflow.workflow.lineage import lineage, merged, owner
from agentflow.workflow.problems import Problem, described, fail, raise_problems
from agentflow.workflow.source import read_yaml

M = TypeVar("M", bound=BaseModel)


def load_config(path: Path, model: type[M], *, own: Collection[str] = ()) -> M:
    """Read `path` as a `model`. `extends: NAME` takes the keys that it doesn't write from another file of its folder.

    Args:
        own: keys that every file must write itself.

    Raises:
        WorkflowError: every problem with file, line and column.
    """
    source = read_yaml(path)
    if not isinstance(source.value, dict):
        fail(source.location(()), f"this file holds a mapping, not {described(source.value)}")
    line = lineage(source, path.parent, "a config", _find)
    values = {key: value for key, value in merged(line).items() if key in source.value or key not in own}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = list(faults(error, model, values))
        writers = {f.path: owner(line, f.path) if f.path[0] in values else source for f in found}
        raise_problems(
            Problem(writers[fault.path].location(fault.path, fault.is_key), fault.path, fault.what, fault.fix)
            for fault in found
        )


def _find(ref: str, folder: Path) -> Path | None:
    beside = (found for found in library.with_suffixes(folder / ref) if library.is_file(found))
    return next(beside, None) or library.find(f"configs/{folder.name}/{ref}")
