"""Runs a job and shows what came of it; `run` and `runs resume` both end here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.cli.common import loader, stoppable
from agentflow.cli.console import count, err, out, plain, print_json
from agentflow.cli.jobs import require_node
from agentflow.cli.live import live
from agentflow.cli.rehearsing import rehearse_job
from agentflow.cli.tables import FiguresTable, failures, figures_json, item_panel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import TracerProvider as SdkProvider

    from agentflow.cli.jobs import Job
    from agentflow.cli.options import RunSettings
    from agentflow.evaluation.figures import ChannelFigures
    from agentflow.models.pool import EnginePool
    from agentflow.runtime.binding import Binding
    from agentflow.runtime.events import Listener
    from agentflow.runtime.results import ItemResult
    from agentflow.runtime.runs import RunStore
    from agentflow.tools import Toolbox


def go(job: Job, settings: RunSettings, *, resumed: Path | None = None, forced: Sequence[str] = ()) -> int:
    """Run a job, in a new folder or in that of the run that is `resumed`; the exit code."""
    from agentflow.runtime.binding import bind
    from agentflow.tools import Toolbox

    if settings.until is not None:
        require_node(job, settings.until, "--until")
    tools = Toolbox.from_file(settings.tools)
    binding = bind(job.workflow, tools)
    if settings.dry:
        with tools:
            return rehearse_job(job, binding, settings, resumed=resumed, forced=forced)
    with loader(settings.executor) as load:
        return _go(job, binding, tools, load, settings, resumed=resumed, forced=forced)


def _go(
    job: Job,
    binding: Binding,
    tools: Toolbox,
    load: Callable[[Sequence[Any]], EnginePool],
    settings: RunSettings,
    *,
    resumed: Path | None,
    forced: Sequence[str],
) -> int:
    from agentflow.evaluation.figures import measure
    from agentflow.runtime.manifest import manifest
    from agentflow.runtime.orchestrator import Orchestrator
    from agentflow.runtime.runs import RunStore
    from agentflow.runtime.tracing import provider_from_environment

    provider = provider_from_environment() if settings.otel else None
    label = "+".join(dict.fromkeys(c.name for c in binding.channels)) or "no channel"
    title = job.workflow.name if job.task is None else f"{job.workflow.name} over {job.source.channel or label}"
    if resumed is not None:
        store = RunStore.open(resumed, forced=forced)  # before models are loaded: somebody else may be at work on it
        try:
            pool = load(list(binding.models.values()))
        except BaseException:
            store.close()
            raise
    else:
        pool = load(list(binding.models.values()))
        kept = manifest(binding, settings.options(), channel=job.source.channel, **job.manifest())
        store = RunStore.create(settings.runs, job.workflow.name, kept)
    again = resume_command(store.folder, settings)
    with (
        tools,
        traced(binding, provider) as traces,
        stoppable(store.folder, again) as tally,
        live(err, job.workflow, title) as listener,
    ):
        listeners: list[Listener] = [tally, listener, *traces]
        orchestrator = Orchestrator(binding, pool, options=settings.options(), store=store, listeners=listeners)
        results = orchestrator.run(job.passes)
    if job.task is None or settings.until is not None:
        code = _tell_nodes(results, store, settings)
    else:
        figures = measure(binding, job.task, job.source.channel or label, job.items, results)
        code = _tell_items(figures, f"{job.workflow.name}: {count(len(job.items), 'item')}", store, settings)
    if code:
        err.print(f"go on with: {plain(again)}", soft_wrap=True)
    return code


@contextmanager
def traced(binding: Binding, provider: SdkProvider | None) -> Iterator[list[Listener]]:
    """A listener that sends spans, all of which are sent when the block ends; none without a provider."""
    from agentflow.runtime.tracing import Tracing

    if provider is None:
        yield []
        return
    try:
        yield [Tracing(binding, provider)]
    finally:
        provider.shutdown()


def resume_command(folder: Path, settings: RunSettings) -> str:
    """The command that goes on with a run; tools' code and where models run are named again, as a run says neither."""
    named = ["--tools", str(settings.tools)] if settings.tools is not None else []
    named += ["--executor", settings.executor] if settings.executor != "local" else []
    return shlex.join(["agentflow", "runs", "resume", str(folder), *named])


def _tell_nodes(results: Sequence[ItemResult], store: RunStore, settings: RunSettings) -> int:
    """Outputs, or what nodes said: of one item, or of the first of several that were run until a node."""
    result = results[0]
    if settings.as_json:
        nodes = {node: [r.to_json() for r in rs] for node, rs in result.nodes.items()}
        found = {"outputs": result.outputs, "nodes": nodes, "errors": result.errors, "skipped": result.skipped}
        print_json({"run": str(store.folder), **found})
    else:
        out.print(item_panel(result))
        more = f" ({count(len(results), 'item')}; shown is '{plain(result.item)}')" if len(results) > 1 else ""
        err.print(f"[dim]stored in {plain(store.folder)}{more}[/]", soft_wrap=True)
    return 1 if any(r.errors for r in results) else 0


def _tell_items(figures: ChannelFigures, what: str, store: RunStore, settings: RunSettings) -> int:
    if settings.as_json:
        print_json({"run": str(store.folder), **figures_json(figures)})
    else:
        out.print(FiguresTable(f"{what}, seed {settings.seed}", (figures,)))
        for line in failures([figures]):
            err.print(line, soft_wrap=True)
        err.print(f"[dim]stored in {plain(store.folder)}[/]", soft_wrap=True)
    return 1 if len(figures.done) < len(figures.items) else 0
