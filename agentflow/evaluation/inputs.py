"""A task's items as a workflow's inputs."""

from __future__ import annotations

from typing import Any

from agentflow.errors import UserError
from agentflow.tasks.base import Item, Task
from agentflow.tasks.registry import make_task
from agentflow.workflow.inputs import fits
from agentflow.workflow.schema import Workflow


def task_of(workflow: Workflow, name: str | None = None, settings: dict[str, Any] | None = None) -> Task:
    """The task that scores a workflow: the one it names, or `name`; `settings` win over the workflow's.

    Raises:
        UserError: no task is named, it is unknown or badly set up, or its items are episodes and no tool plays them.
    """
    task = _named_task(workflow, name, settings)
    node = workflow.task.answer if workflow.task is not None else None
    if task.interactive and not (node is not None and workflow.is_tool(node)):
        raise UserError(
            f"The items of task '{task.name}' are episodes to be played, and the workflow '{workflow.name}' answers "
            "them with words.",
            fix="The node that `task: {answer: ...}` names must be a tool that says how the episode ended.",
        )
    return task


def _named_task(workflow: Workflow, name: str | None, settings: dict[str, Any] | None) -> Task:
    spec = workflow.task
    if spec is not None and name in (None, spec.name):
        return make_task(spec.name, {**spec.settings, **(settings or {})})
    if name is None:
        raise UserError(f"The workflow '{workflow.name}' names no task.", fix="Add `task: NAME` to it, or pass --task.")
    return make_task(name, settings or {})


def inputs_of(workflow: Workflow, item: Item) -> dict[str, Any]:
    """The item's values for the inputs that the workflow declares.

    Raises:
        UserError: the workflow needs an input that the task does not give.
    """
    missing = [n for n, spec in workflow.inputs.items() if spec.required and n not in item.inputs]
    if missing:
        raise UserError(
            f"The workflow '{workflow.name}' needs the input '{missing[0]}', which its task does not give.",
            fix=f"The task gives: {', '.join(item.inputs)}.",
        )
    for name, spec in workflow.inputs.items():
        if name in item.inputs and not fits(spec.type, item.inputs[name]):
            raise UserError(
                f"The workflow '{workflow.name}' declares '{name}' as {spec.type}, and its task gives something else.",
                fix=f"Change the type of the input '{name}'.",
            )
    filled = {n: spec.default for n, spec in workflow.inputs.items() if not spec.required}
    return {**filled, **{n: v for n, v in item.inputs.items() if n in workflow.inputs}}
