"""`agentflow runs`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from agentflow.cli.common import settled_line
from agentflow.cli.console import count, out, plain, print_json, seconds
from agentflow.cli.options import FILE, RunSettings, dry_option, going_options, json_option, otel_option, runs_option
from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.runtime.listing import NodeRows, StoredRun

_STYLES = {"done": "green", "failed": "red", "stopped": "yellow", "running": "cyan"}


@click.group("runs")
def command() -> None:
    """Look after stored runs. RUN is a folder, a name below --runs, or `last`."""


@command.command("list", short_help="Which runs there are, and how far each came.")
@runs_option
@json_option
def list_runs(runs: Path, as_json: bool) -> None:
    """List stored runs, the newest first.

    \b
    agentflow runs list
    """
    from agentflow.runtime.listing import look, run_folders

    found = [look(folder) for folder in reversed(run_folders(runs))]
    if as_json:
        print_json([_run_json(run) for run in found])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("run", "state", "items", "results"):
        table.add_column(name, justify="right" if name in ("items", "results") else "left", overflow="fold")
    for run in found:
        state = f"[{_STYLES[run.state]}]{run.state}[/]"
        table.add_row(plain(run.folder.name), state, f"{run.finished}/{run.items}", str(run.results))
    out.print(table if found else f"no runs in {plain(runs)}")


@command.command("show", short_help="A run as a tree of its nodes.")
@click.argument("run")
@click.option("--item", metavar="ID", help="Only this item of a task.")
@runs_option
@json_option
def show(run: str, item: str | None, runs: Path, as_json: bool) -> None:
    """Draw RUN as a tree: for every node how its units ended (children of maps and items folded) and what they cost.

    \b
    agentflow runs show last
    """
    from agentflow.runtime.listing import find_run, look, node_rows, read_outcome
    from agentflow.runtime.runs import read_manifest

    folder = find_run(run, runs)
    found, manifest, rows = look(folder), read_manifest(folder), node_rows(folder, item)
    if item is not None and not any(row.states for row in rows.values()):
        raise UserError(f"Nothing has run for an item '{item}'.", where="--item")
    if as_json:
        nodes = {name: {**_row_json(row)} for name, row in rows.items()}
        print_json({**_run_json(found), "nodes": nodes, "items": read_outcome(folder).get("items", {})})
        return
    title = f"{found.folder.name}: {found.state}, {found.finished} of {count(found.items, 'item')} finished"
    told = [settled_line(entry) for entry in manifest.get("negotiated", [])]
    for line in [*_tree(title, manifest, rows), *told]:
        out.print(plain(line), soft_wrap=True)


@command.command("resume", short_help="Go on with a run that was stopped or has failed.")
@click.argument("run")
@click.option("--force", "forced", multiple=True, metavar="NODE", help="Run this node in any case. Repeatable.")
@click.option("--key-file", type=FILE, metavar="FILE", help="Sign kept payloads with this key.")
@dry_option
@otel_option
@going_options(batch=8)
def resume(
    run: str, forced: tuple[str, ...], key_file: Path | None, dry: bool, otel: bool, settings: RunSettings
) -> int:
    """Run what is missing of RUN, and what is asked otherwise now because the workflow was changed; nothing else.

    Workflow, items, channel and seed are those that the run was started with.

    \b
    agentflow runs resume last
    """
    from agentflow.cli.run import resume_run

    return resume_run(run, replace(settings, dry=dry, otel=otel), key_file, forced=forced)


@command.command("export", short_help="A run as one JSON document.")
@click.argument("run")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "otlp-json"]),
    default="json",
    show_default=True,
    help="json: all that is stored; otlp-json: its spans, as --otel sends them.",
)
@click.option("--out", "file", type=FILE, metavar="FILE", help="Write it here (default: standard output).")
@runs_option
def export_run(run: str, form: str, file: Path | None, runs: Path) -> None:
    """Write RUN as one JSON document: manifest, outputs, errors, results. Payloads are not in it.

    As OpenTelemetry's spans it holds sizes and times only, never words; any collector that takes OTLP over HTTP takes
    the file as it is.

    \b
    agentflow runs export last
    agentflow runs export last --format otlp-json --out spans.json
    """
    from agentflow.runtime.listing import export, find_run
    from agentflow.runtime.otlp import otlp_json
    from agentflow.runtime.runs import read_events, read_manifest, write_json

    folder = find_run(run, runs)
    if form == "otlp-json":
        document = otlp_json(folder.name, read_manifest(folder), read_events(folder))
    else:
        document = export(folder)
    if file is None:
        print_json(document)
        return
    try:
        write_json(file, document)
    except OSError as error:
        raise UserError(f"The export can't be written: {error.strerror}.", where=str(file)) from None
    out.print(f"written to {plain(file)}", soft_wrap=True)


@command.command("timeline", short_help="A run as a page: what ran when, and what was handed over.")
@click.argument("run")
@click.option("--out", "file", type=FILE, metavar="FILE", help="Write it here (default: timeline.html in the run).")
@runs_option
def timeline(run: str, file: Path | None, runs: Path) -> None:
    """Draw RUN as one HTML file that opens anywhere: every unit a bar, hand-overs with their bytes, errors and retries.

    \b
    agentflow runs timeline last
    """
    from agentflow.evaluation.report.timeline import timeline_html
    from agentflow.runtime.listing import find_run, look
    from agentflow.runtime.runs import read_events, read_manifest
    from agentflow.runtime.spans import spans_of

    folder = find_run(run, runs)
    page = timeline_html(folder.name, read_manifest(folder), look(folder).state, spans_of(read_events(folder)))
    file = file or folder / "timeline.html"
    try:
        file.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"The timeline can't be written: {error.strerror}.", where=str(file)) from None
    out.print(f"written to {plain(file)}", soft_wrap=True)


@command.command("rm", short_help="Delete runs.")
@click.argument("run", nargs=-1, required=True)
@runs_option
@json_option
def remove_runs(run: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Delete every RUN that is named; one that a process is at work on is refused.

    \b
    agentflow runs rm last
    """
    from agentflow.runtime.listing import find_run, remove

    folders = [find_run(ref, runs) for ref in run]  # all are there before the first is gone
    for folder in folders:
        remove(folder)
    if as_json:
        print_json({"removed": [str(folder) for folder in folders]})
    else:
        out.print(f"removed {count(len(folders), 'run')}")


def _run_json(run: StoredRun) -> dict[str, Any]:
    return {
        "run": run.folder.name,
        "folder": str(run.folder),
        "workflow": run.workflow,
        "state": run.state,
        "started": run.started,
        "items": run.items,
        "finished": run.finished,
        "results": run.results,
    }


def _row_json(row: NodeRows) -> dict[str, Any]:
    figures = {"prefilled": row.prefilled, "generated": row.generated, "seconds": row.seconds}
    return {**figures, "states": dict(row.states), "error": row.because or None}


def _tree(title: str, manifest: dict[str, Any], rows: dict[str, NodeRows]) -> list[str]:
    from agentflow.workflow.drawing import tree_lines
    from agentflow.workflow.graph import graph_of

    channels = {(sender, receiver): channel for sender, receiver, channel in manifest.get("edges", [])}
    graph = graph_of(rows, channels)
    return tree_lines(
        title,
        graph,
        titled=lambda name: f"{name} · {_said(rows[name])}",
        sent=lambda sender, receiver: channels[sender, receiver],
    )


def _said(row: NodeRows) -> str:
    if not row.states:
        return "not begun"
    how = ", ".join(f"{number} {state}" if row.states.total() > 1 else state for state, number in row.states.items())
    cost = f" · prefilled {row.prefilled:,}, generated {row.generated:,}, {seconds(row.seconds)}"
    return how + (cost if row.seconds else "") + (f" · {row.because}" if row.because else "")
