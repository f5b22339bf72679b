"""Tasks by name, from the entry-point group `agentflow.tasks`; built-ins use the same door as plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentflow.plugins import load_plugin, plugin_names
from agentflow.settings import checked
from agentflow.tasks.base import Task

GROUP = "agentflow.tasks"


def task_names() -> list[str]:
    """Return the names of all registered tasks, sorted."""
    return plugin_names(GROUP)


def get_task(name: str) -> type[Task]:
    """Return the task class with this name; `UserError` if it is unknown or can't be loaded."""
    return load_plugin(GROUP, name, Task)  # type: ignore[type-abstract]  # only its subclasses are made


def make_task(name: str, settings: Mapping[str, Any] | None = None) -> Task:
    """Return the task with these settings; one `UserError` names every setting that is wrong."""
    return build(get_task(name), name, settings)


def build(task: type[Task], name: str, settings: Mapping[str, Any] | None = None) -> Task:
    """Return `task` with these settings; `name` is what error messages call it."""
    return task(checked(task.Settings, settings or {}, where=f"task {name}"))
