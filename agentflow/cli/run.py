"""`agentflow run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.common import check_runs_folder, items_for, load_engines, signing_key, stoppable, workflow_on
from agentflow.cli.console import count, err, out, plain, print_json
from agentflow.cli.inputs import read_inputs
from agentflow.cli.live import live
from agentflow.cli.options import FILE, Count, RunSettings, channel_option, data_option, run_options, task_option
from agentflow.cli.tables import FiguresTable, failures, figures_json, item_panel
from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.tasks.base import Item, Task
    from agentflow.workflow.schema import Workflow


@click.command("run")
@click.argument("workflow")
@channel_option
@task_option
@data_option
@click.option("--limit", "-n", type=Count(), help="Take this many of the task's items (default: all).")
@click.option(
    "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="One input; JSON where it is no text. Repeatable."
)
@click.option("--inputs", "inputs_file", type=FILE, metavar="FILE", help="All inputs, from a JSON file.")
@run_options(batch=8)
@click.option("--keep-payloads", is_flag=True, help="Write every payload into the run's folder.")
@click.option("--key-file", type=FILE, metavar="FILE", help="Sign kept payloads with this key.")
def command(
    workflow: str,
    channel: str | None,
    task_name: str | None,
    data: Path | None,
    limit: int | None,
    pairs: tuple[str, ...],
    inputs_file: Path | None,
    settings: RunSettings,
    keep_payloads: bool,
    key_file: Path | None,
) -> int:
    """Run WORKFLOW: a YAML file, or the name of one that ships.

    With inputs it runs once and prints the outputs. Otherwise it runs over its task's items and prints their scores.

    \b
    agentflow run private_facts -n 4
    agentflow run hotpotqa --data dev.jsonl.gz -n 10 --channel text
    agentflow run my.yaml --input question="Who wrote Emma?"
    """
    from agentflow.evaluation.inputs import task_of

    if key_file is not None and not keep_payloads:
        raise UserError("A key signs kept payloads, and none are kept.", where="--key-file", fix="Add --keep-payloads.")
    settings = replace(settings, keep_payloads=keep_payloads, key=signing_key(key_file))
    check_runs_folder(settings.runs)
    loaded = workflow_on(workflow, channel)
    if pairs or inputs_file:
        _refuse({"--task": task_name, "--data": data, "--limit": limit})
        return _run_once(loaded, read_inputs(loaded, pairs, inputs_file), settings)
    if loaded.task is None and task_name is None:
        _refuse({"--data": data, "--limit": limit}, f"the workflow '{loaded.name}' names no task")
        return _run_once(loaded, {}, settings)
    task = task_of(loaded, task_name)
    items = items_for(loaded, task, data, limit, settings.seed)
    return _run_task(loaded, task, items, channel, settings)


def _refuse(options: dict[str, object], because: str = "inputs are given") -> None:
    """Refuse options of a task in a run that has none, rather than leave them unheard."""
    for option, value in options.items():
        if value is not None:
            raise UserError(
                f"This option belongs to a task's items, but {because}.",
                where=option,
                fix="Give either inputs or a task.",
            )


def _run_once(loaded: Workflow, given: dict[str, Any], settings: RunSettings) -> int:
    from agentflow.runtime.binding import bind
    from agentflow.runtime.orchestrator import Orchestrator
    from agentflow.runtime.runs import RunStore
    from agentflow.workflow.inputs import resolve_inputs

    try:
        inputs = resolve_inputs(loaded, given)
    except UserError as error:
        raise UserError(
            error.what, where=error.where, fix="Give inputs with --input NAME=VALUE or --inputs FILE."
        ) from None
    binding = bind(loaded)
    pool = load_engines(list(binding.models.values()))
    manifest = {"file": loaded.file, "inputs": inputs, "seed": settings.seed}
    store = RunStore.create(settings.runs, loaded.name, manifest)
    with stoppable(store.folder) as tally, live(err, loaded, loaded.name) as listener:
        orchestrator = Orchestrator(binding, pool, options=settings.options(), store=store, listeners=[tally, listener])
        result = orchestrator.run([("run", inputs)])[0]
    if settings.as_json:
        nodes = {node: [r.to_json() for r in rs] for node, rs in result.nodes.items()}
        print_json({"run": str(store.folder), "outputs": result.outputs, "nodes": nodes, "errors": result.errors})
    else:
        out.print(item_panel(result))
        err.print(f"[dim]stored in {plain(store.folder)}[/]", soft_wrap=True)
    return 1 if result.errors else 0


def _run_task(loaded: Workflow, task: Task, items: list[Item], channel: str | None, settings: RunSettings) -> int:
    from agentflow.evaluation.items import run_items
    from agentflow.runtime.binding import bind

    binding = bind(loaded)
    pool = load_engines(list(binding.models.values()))
    label = channel or "+".join(dict.fromkeys(c.name for c in binding.channels)) or "no channel"
    with stoppable(settings.runs) as tally, live(err, loaded, f"{loaded.name} over {label}") as listener:
        figures, store = run_items(
            loaded,
            task,
            items,
            pool,
            label=label,
            options=settings.options(),
            runs=settings.runs,
            listeners=[tally, listener],
        )
    assert store is not None  # `runs` was given
    if settings.as_json:
        print_json({"run": str(store.folder), **figures_json(figures)})
    else:
        title = f"{loaded.name}: {count(len(items), 'item')}, seed {settings.seed}"
        out.print(FiguresTable(title, (figures,)))
        for line in failures([figures]):
            err.print(line, soft_wrap=True)
        err.print(f"[dim]stored in {plain(store.folder)}[/]", soft_wrap=True)
    return 1 if len(figures.done) < len(figures.items) else 0
