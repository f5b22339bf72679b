"""What `run` runs: a workflow on inputs or over a task's items, as the command line or a stored run says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.cli.common import items_for, workflow_on
from agentflow.cli.inputs import read_inputs
from agentflow.errors import RunError, UserError, did_you_mean

if TYPE_CHECKING:
    from agentflow.tasks.base import Item, Task
    from agentflow.workflow.schema import Workflow


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a run's items come from: inputs, or a task with its data.

    Attributes:
        task: its name where it is not the workflow's own.
    """

    channel: str | None = None
    inputs: dict[str, Any] | None = None
    task: str | None = None
    data: Path | None = None
    limit: int | None = None

    @classmethod
    def stored(cls, manifest: dict[str, Any]) -> Source:
        """The same as the manifest of a run has it."""
        data = manifest.get("data")
        return cls(
            channel=manifest.get("channel"),
            inputs=manifest.get("inputs"),
            task=manifest.get("task"),
            data=Path(data) if data else None,
            limit=manifest.get("limit"),
        )

    def to_json(self) -> dict[str, Any]:
        """What the manifest keeps; `channel` has a place of its own there."""
        if self.inputs is not None:
            return {"inputs": self.inputs}
        return {"task": self.task, "data": str(self.data.resolve()) if self.data else None, "limit": self.limit}


@dataclass(frozen=True)
class Job:
    """A workflow and its items, read and checked; a run on inputs has no task."""

    workflow: Workflow
    source: Source
    passes: tuple[tuple[str, dict[str, Any]], ...]
    task: Task | None = None
    items: tuple[Item, ...] = ()

    def manifest(self) -> dict[str, Any]:
        """What the run's manifest says of it."""
        ids = {"items": [item for item, _ in self.passes]} if self.task is not None else {}
        return {**self.source.to_json(), **ids}


def asked_for(ref: str, source: Source, pairs: tuple[str, ...], inputs_file: Path | None, seed: int) -> Job:
    """The job of a command: inputs where some are given, else the items of a task.

    Raises:
        UserError: options that don't go together, or anything wrong with what they name.
    """
    workflow = workflow_on(ref, source.channel)
    options = {"--task": source.task, "--data": source.data, "--limit": source.limit}
    if pairs or inputs_file:
        _refuse(options)
        given = read_inputs(workflow, pairs, inputs_file)
        return job_of(workflow, Source(channel=source.channel, inputs=given), seed)
    if workflow.task is None and source.task is None:
        _refuse(options, f"the workflow '{workflow.name}' names no task")
        return job_of(workflow, Source(channel=source.channel, inputs={}), seed)
    return job_of(workflow, source, seed)


def stored_job(ref: str | None, manifest: dict[str, Any], folder: Path) -> Job:
    """The job of a stored run, on the workflow as it is now.

    Args:
        ref: the workflow, where it is not to be found where it was.

    Raises:
        RunError: it is another workflow, or its task gives other items now.
    """
    source = Source.stored(manifest)
    workflow = workflow_on(ref or str(manifest["file"]), source.channel)
    if workflow.name != manifest["workflow"]:
        raise RunError(f"This run is one of '{manifest['workflow']}', not of '{workflow.name}'.", where=str(folder))
    job = job_of(workflow, source, int(manifest["seed"]))
    if job.task is not None and [item for item, _ in job.passes] != manifest["items"]:
        fix = "Run the workflow anew."
        raise RunError("The task's data have changed: it gives other items now.", where=str(folder), fix=fix)
    return job


def job_of(workflow: Workflow, source: Source, seed: int) -> Job:
    """Read the items of a source."""
    from agentflow.evaluation.inputs import inputs_of, task_of
    from agentflow.runtime.manifest import ONLY_ITEM
    from agentflow.workflow.inputs import resolve_inputs

    if source.inputs is not None:
        try:
            inputs = resolve_inputs(workflow, source.inputs)
        except UserError as error:
            fix = "Give inputs with --input NAME=VALUE or --inputs FILE."
            raise UserError(error.what, where=error.where, fix=fix) from None
        return Job(workflow, Source(channel=source.channel, inputs=inputs), ((ONLY_ITEM, inputs),))
    task = task_of(workflow, source.task)
    items = tuple(items_for(workflow, task, source.data, source.limit, seed))
    return Job(workflow, source, tuple((item.id, inputs_of(workflow, item)) for item in items), task, items)


def require_node(job: Job, node: str, option: str) -> None:
    """Refuse an option that names a node which is not there."""
    from agentflow.workflow.frames import address

    if not job.workflow.members(node):
        names = dict.fromkeys(map(address, job.workflow.nodes))
        raise UserError(f"There is no node '{node}'.", where=option, fix=did_you_mean(node, names))


def _refuse(options: Mapping[str, object], because: str = "inputs are given") -> None:
    """Refuse options of a task in a run that has none, rather than leave them unheard."""
    for option, value in options.items():
        if value is not None:
            raise UserError(
                f"This option belongs to a task's items, but {because}.",
                where=option,
                fix="Give either inputs or a task.",
            )
