"""The same workflow over the same items, once for each channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agentflow.errors import UserError
from agentflow.evaluation.figures import ChannelFigures, measure
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.events import Listener
from agentflow.runtime.orchestrator import Orchestrator, RunOptions
from agentflow.runtime.runs import RunStore
from agentflow.tasks.base import Item, Task
from agentflow.tasks.registry import make_task
from agentflow.workflow.schema import Workflow


def task_of(workflow: Workflow, name: str | None = None) -> Task:
    """The task that scores a workflow: the one it names, or `name`, with its settings."""
    spec = workflow.task
    if spec is not None and name in (None, spec.name):
        return make_task(spec.name, spec.settings)
    if name is None:
        raise UserError(f"The workflow '{workflow.name}' names no task.", fix="Add `task: NAME` to it, or pass --task.")
    return make_task(name)


def inputs_of(workflow: Workflow, item: Item) -> dict[str, object]:
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
    filled = {n: spec.default for n, spec in workflow.inputs.items() if not spec.required}
    return {**filled, **{n: v for n, v in item.inputs.items() if n in workflow.inputs}}


def run_items(
    workflow: Workflow,
    task: Task,
    items: Sequence[Item],
    engines: EnginePool,
    *,
    label: str,
    options: RunOptions | None = None,
    runs: Path | None = None,
    listeners: Sequence[Listener] = (),
) -> tuple[ChannelFigures, RunStore | None]:
    """Run a workflow over a task's items and measure it; stored below `runs` where that is given."""
    binding = bind(workflow)
    passes = [(item.id, inputs_of(workflow, item)) for item in items]
    store = None
    if runs is not None:
        manifest = {
            "file": workflow.file,
            "task": task.name,
            "channel": label,
            "items": [i.id for i in items],
            "seed": (options or RunOptions()).seed,
        }
        store = RunStore.create(runs, workflow.name, manifest)
    orchestrator = Orchestrator(binding, engines, options=options, store=store, listeners=listeners)
    results = orchestrator.run(passes)
    return measure(binding, task, label, items, results), store


def compare(
    workflow: Workflow,
    task: Task,
    items: Sequence[Item],
    channels: Sequence[str],
    engines: EnginePool,
    *,
    options: RunOptions | None = None,
    runs: Path | None = None,
    listener: Callable[[str], Sequence[Listener]] = lambda _channel: (),
) -> list[ChannelFigures]:
    """Run every channel over the same items.

    Every channel is checked before the first one runs.
    """
    variants = {name: workflow.with_channel(name) for name in channels}
    for variant in variants.values():
        bind(variant)
    return [
        run_items(variant, task, items, engines, label=name, options=options, runs=runs, listeners=listener(name))[0]
        for name, variant in variants.items()
    ]
