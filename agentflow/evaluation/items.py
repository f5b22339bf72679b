"""A workflow over a task's items, scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentflow.evaluation.figures import ChannelFigures, measure
from agentflow.evaluation.inputs import inputs_of
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.events import Listener
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore
from agentflow.tasks.base import Item, Task
from agentflow.workflow.schema import Workflow


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
