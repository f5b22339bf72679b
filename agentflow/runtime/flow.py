"""The Python door: load a workflow, run it, look at what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentflow.errors import RunError
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import Binding, bind
from agentflow.runtime.events import Listener
from agentflow.runtime.manifest import ONLY_ITEM, manifest
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.results import ItemResult
from agentflow.runtime.runs import RunStore, read_manifest
from agentflow.tools import Toolbox
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
    tools: Toolbox = field(default_factory=Toolbox)

    def bind(self, channel: str | Mapping[str, Any] | None = None) -> Binding:
        """Check models and channels without loading anything; with `channel`, every edge but fixed ones."""
        if channel is None:
            return bind(self.workflow, self.tools)
        spec = ChannelSpec.of(channel if isinstance(channel, str) else dict(channel))
        return bind(self.workflow.with_channel(spec), self.tools)

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        channel: str | Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
        runs: Path | None = None,
        listeners: Sequence[Listener] = (),
    ) -> ItemResult:
        """Run once; a run that is kept can be resumed.

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
            kept = manifest(binding, options or RunOptions(), channel=channel, inputs=given)
            store = RunStore.create(runs, self.workflow.name, kept)
        orchestrator = Orchestrator(binding, self.engines, options=options, store=store, listeners=listeners)
        return orchestrator.run([(ONLY_ITEM, given)])[0]

    def resume(
        self,
        run: Path,
        *,
        options: RunOptions | None = None,
        force: Sequence[str] = (),
        listeners: Sequence[Listener] = (),
    ) -> ItemResult:
        """Go on with a run on inputs that was stopped or has failed: what is missing, or was asked otherwise now.

        Args:
            run: its folder.
            options: as for `run`, but for the seed, which is the run's.
            force: nodes to run again in any case.

        Raises:
            UserError: no such run, one over a task's items, or one that another process is at work on.
        """
        kept = read_manifest(run)
        if not isinstance(kept.get("inputs"), dict):
            raise RunError("This run has no inputs: it is over a task's items.", where=str(run))
        binding = self.bind(kept.get("channel"))
        store = RunStore.open(run, forced=[name for node in force for name in self.workflow.members(node)])
        chosen = replace(options or RunOptions(), seed=kept["seed"])
        orchestrator = Orchestrator(binding, self.engines, options=chosen, store=store, listeners=listeners)
        return orchestrator.run([(ONLY_ITEM, resolve_inputs(self.workflow, kept["inputs"]))])[0]


def load_workflow(
    ref: str | Path, *, engines: EnginePool | None = None, tools: Iterable[Callable[..., Any]] = ()
) -> Flow:
    """Load a workflow by path or shipped name.

    Args:
        tools: typed functions that its nodes may call by name, beside the tools that are installed.

    Raises:
        WorkflowError: every mistake in the file, with line and column.
        UserError: a function that can't be a tool.
    """
    return Flow(load_yaml(ref), engines or EnginePool(), Toolbox(tools))
