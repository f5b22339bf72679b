"""The Python door: load a workflow, run it, look at what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import Binding, bind
from agentflow.runtime.events import Listener
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.results import ItemResult
from agentflow.runtime.runs import RunStore
from agentflow.workflow.inputs import resolve_inputs
from agentflow.workflow.loader import load_workflow as load_yaml
from agentflow.workflow.parts import ChannelSpec
from agentflow.workflow.schema import Workflow


@dataclass(frozen=True, eq=False)
class Flow:
    """A workflow that is ready to run; models are loaded once and shared by all its runs.

    >>> flow = agentflow.load_workflow("private_facts")
    >>> result = flow.run({"facts": [...], "questions": [...]}, channel="cache")
    >>> result.outputs["answers"]
    """

    workflow: Workflow
    engines: EnginePool = field(default_factory=EnginePool)

    def bind(self, channel: str | Mapping[str, Any] | None = None) -> Binding:
        """Check models and channels without loading anything; with `channel`, every edge but fixed ones."""
        if channel is None:
            return bind(self.workflow)
        spec = ChannelSpec.of(channel if isinstance(channel, str) else dict(channel))
        return bind(self.workflow.with_channel(spec))

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        channel: str | Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
        runs: Path | None = None,
        listeners: Sequence[Listener] = (),
    ) -> ItemResult:
        """Run once.

        Args:
            inputs: values for the workflow's inputs; checked against their types.
            channel: put every message but those of fixed edges on this channel (a name, or a mapping with `name`
                and settings).
            runs: keep the run in a folder below this one.

        Raises:
            UserError: wrong inputs, an unknown or unfit channel, a model that can't be had.
        """
        given = resolve_inputs(self.workflow, dict(inputs or {}))
        binding = self.bind(channel)
        store = None
        if runs is not None:
            manifest = {"file": self.workflow.file, "inputs": given, "seed": (options or RunOptions()).seed}
            store = RunStore.create(runs, self.workflow.name, manifest)
        orchestrator = Orchestrator(binding, self.engines, options=options, store=store, listeners=listeners)
        return orchestrator.run([("run", given)])[0]


def load_workflow(ref: str | Path, *, engines: EnginePool | None = None) -> Flow:
    """Load a workflow by path or shipped name.

    Raises:
        WorkflowError: every mistake in the file, with line and column.
    """
    return Flow(load_yaml(ref), engines or EnginePool())
