"""`agentflow run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from agentflow.cli.common import engine_pool, items_of, load_engines, signing_key, workflow_on
from agentflow.cli.console import err, out, print_json
from agentflow.cli.live import live
from agentflow.cli.tables import figures_json, figures_table, item_panel
from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.workflow.schema import Workflow


@click.command("run")
@click.argument("workflow")
@click.option("--channel", help="Send every message over this channel.")
@click.option("--task", "task_name", help="Score as this task (default: the one the workflow names).")
@click.option("--data", type=click.Path(path_type=Path), help="The task's data file.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Take this many items.")
@click.option("--input", "pairs", multiple=True, metavar="NAME=VALUE", help="One input; VALUE may be JSON.")
@click.option("--inputs", "inputs_file", type=click.Path(path_type=Path), help="All inputs, from a JSON file.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Units answered as one batch.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where runs are kept.",
)
@click.option("--keep-payloads", is_flag=True, help="Write every payload into the run's folder.")
@click.option("--key-file", type=click.Path(path_type=Path), help="Sign kept payloads with this key.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    workflow: str,
    channel: str | None,
    task_name: str | None,
    data: Path | None,
    limit: int | None,
    pairs: tuple[str, ...],
    inputs_file: Path | None,
    seed: int,
    batch: int,
    runs: Path,
    keep_payloads: bool,
    key_file: Path | None,
    as_json: bool,
) -> int:
    """Run WORKFLOW: a YAML file, or the name of one that ships.

    \b
    agentflow run private_facts -n 4
    agentflow run workflows/hotpotqa.yaml --data dev.jsonl.gz -n 10 --channel cache
    agentflow run my.yaml --input question="Who wrote Emma?"
    """
    loaded = workflow_on(workflow, channel)
    if pairs or inputs_file:
        given = read_inputs(pairs, inputs_file)
        return _run_once(loaded, given, seed, batch, runs, keep_payloads, signing_key(key_file), as_json)
    if loaded.task is None and task_name is None and not any(s.required for s in loaded.inputs.values()):
        return _run_once(loaded, {}, seed, batch, runs, keep_payloads, signing_key(key_file), as_json)
    return _run_task(
        loaded,
        task_name,
        data,
        limit,
        channel,
        seed,
        batch,
        runs,
        keep_payloads,
        signing_key(key_file),
        as_json,
    )


def _run_once(
    loaded: Workflow,
    given: dict[str, Any],
    seed: int,
    batch: int,
    runs: Path,
    keep: bool,
    key: bytes | None,
    as_json: bool,
) -> int:
    from agentflow.runtime.binding import bind
    from agentflow.runtime.orchestrator import Orchestrator, RunOptions
    from agentflow.runtime.runs import RunStore
    from agentflow.workflow.inputs import resolve_inputs

    inputs = resolve_inputs(loaded, given)
    binding = bind(loaded)
    pool = engine_pool(err)
    load_engines(pool, list(binding.models.values()))
    store = RunStore.create(runs, loaded.name, {"file": loaded.file, "inputs": inputs, "seed": seed})
    with live(err, loaded, loaded.name) as listener:
        options = RunOptions(seed, batch, keep, key)
        orchestrator = Orchestrator(binding, pool, options=options, store=store, listeners=[listener])
        result = orchestrator.run([("run", inputs)])[0]
    if as_json:
        nodes = {node: [r.to_json() for r in rs] for node, rs in result.nodes.items()}
        print_json({"run": str(store.folder), "outputs": result.outputs, "nodes": nodes, "errors": result.errors})
    else:
        out.print(item_panel(result))
        err.print(f"[dim]stored in {escape(str(store.folder))}[/]")
    return 1 if result.errors else 0


def _run_task(
    loaded: Workflow,
    task_name: str | None,
    data: Path | None,
    limit: int | None,
    channel: str | None,
    seed: int,
    batch: int,
    runs: Path,
    keep: bool,
    key: bytes | None,
    as_json: bool,
) -> int:
    from agentflow.evaluation.compare import run_items, task_of
    from agentflow.runtime.binding import bind
    from agentflow.runtime.orchestrator import RunOptions

    task = task_of(loaded, task_name)
    items = items_of(task, data, limit, seed)
    binding = bind(loaded)
    pool = engine_pool(err)
    load_engines(pool, list(binding.models.values()))
    label = channel or "+".join(dict.fromkeys(c.name for c in binding.channels)) or "no channel"
    with live(err, loaded, f"{loaded.name} over {label}") as listener:
        options = RunOptions(seed, batch, keep, key)
        figures, store = run_items(
            loaded, task, items, pool, label=label, options=options, runs=runs, listeners=[listener]
        )
    assert store is not None
    failed = [i for i in figures.items if i.error]
    if as_json:
        print_json({"run": str(store.folder), **figures_json(figures)})
    else:
        out.print(figures_table(f"{loaded.name}, {len(items)} items", [figures]))
        for item in failed[:5]:
            err.print(f"[red]failed[/] {escape(item.error)}")
        err.print(f"[dim]stored in {escape(str(store.folder))}[/]")
    return 1 if failed else 0


def read_inputs(pairs: tuple[str, ...], file: Path | None) -> dict[str, Any]:
    """Inputs from a JSON file, overridden by NAME=VALUE pairs; a VALUE that is JSON is read as JSON."""
    given: dict[str, Any] = {}
    if file is not None:
        try:
            given = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"The inputs can't be read: {error.strerror}.", where=str(file)) from None
        except ValueError as error:
            raise UserError(f"The inputs are not JSON: {error}.", where=str(file)) from None
        if not isinstance(given, dict):
            raise UserError("The inputs must be a JSON object: {name: value}.", where=str(file))
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(f"'{pair}' is not NAME=VALUE.", where="--input")
        try:
            given[name] = json.loads(value)
        except ValueError:
            given[name] = value
    return given
