"""`agentflow compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from agentflow.cli.common import Stopped, check_runs_folder, items_for, load_engines, require_edges
from agentflow.cli.console import count, err, out, plain, print_json
from agentflow.cli.options import FILE, Count, data_option, json_option, task_option, tools_option
from agentflow.cli.running import finished, running
from agentflow.cli.specs import channel_specs, check_controls, control_names, task_settings
from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.evaluation.rows import Comparison
    from agentflow.tasks.base import Task
    from agentflow.workflow.schema import Workflow


WIDE = 300
"""Columns that every figure needs."""


@click.command("compare")
@click.argument("workflow")
@click.option(
    "--channels",
    default="all",
    show_default=True,
    metavar="A,B,…",
    help="Channels, the reference first; {name: cache, bits: 4} gives settings. all: those that need no training.",
)
@click.option("--controls", default="all", show_default=True, metavar="all|none|A,B,…", help="What channels must beat.")
@task_option
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting of the task. Repeatable.")
@data_option
@tools_option
@click.option("--limit", "-n", type=Count(), default=10, show_default=True, help="Take this many of the task's items.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of items, sampling and bootstrap.")
@click.option(
    "--out", "out_folder", type=FILE, metavar="DIR", help="Where rows and reports go (default: below runs/compare)."
)
@click.option("--published", type=FILE, metavar="FILE", help="Papers' figures to show beside ours, as JSON.")
@click.option("--no-likelihood", is_flag=True, help="Leave out NLL and KL of the right answers.")
@click.option("--wide", is_flag=True, help="Print every column, whatever the width.")
@json_option
def command(
    workflow: str,
    channels: str,
    controls: str,
    task_name: str | None,
    pairs: tuple[str, ...],
    data: Path | None,
    tools_file: Path | None,
    limit: int,
    seed: int,
    out_folder: Path | None,
    published: Path | None,
    no_likelihood: bool,
    wide: bool,
    as_json: bool,
) -> int:
    """Run WORKFLOW over each channel and its controls on the same items, and say what each costs and scores.

    Stopped comparisons go on where they were: run the same command again. Reports (HTML, Markdown, JSON) are
    written beside the rows.

    \b
    agentflow compare private_facts -n 8
    agentflow compare private_facts -n 20 --set level=medium --channels "text,cache,{name: cache, bits: 4}"
    agentflow compare hotpotqa --data dev.jsonl.gz -n 100 --set setting=split --out runs/split
    """
    from agentflow.evaluation.compare import CompareOptions, compare
    from agentflow.evaluation.controls import CONTROLS, label
    from agentflow.evaluation.inputs import task_of
    from agentflow.runtime.binding import bind
    from agentflow.tools import Toolbox
    from agentflow.workflow.loader import load_workflow

    specs = channel_specs(_untrained() if channels == "all" else channels)
    chosen = control_names(controls, tuple(CONTROLS))
    check_controls(chosen, [label(spec.name, spec.settings) for spec in specs])
    loaded = load_workflow(workflow)
    require_edges(loaded, "--channels")
    task = task_of(loaded, task_name, task_settings(pairs))
    items = items_for(loaded, task, data, limit, seed)
    tools = Toolbox.from_file(tools_file)
    bindings = [bind(loaded.with_channel(spec), tools) for spec in specs]
    folder = out_folder or _folder(loaded, task, data, len(items), seed)
    check_runs_folder(folder, "--out")
    figures = _published(published)
    pool = load_engines([spec for binding in bindings for spec in binding.models.values()])
    options = CompareOptions(controls=chosen, seed=seed, probe=not no_likelihood, out=folder, published=figures)
    seen: list[Comparison] = []
    try:
        with tools, running(err, len(items), f"{loaded.name} ({task.name})") as show:

            def shown(comparison: Comparison) -> None:
                seen[:] = [comparison]
                show(comparison)

            comparison = compare(loaded, task, items, specs, pool, options=options, shown=shown, tools=tools)
    except KeyboardInterrupt:
        done = finished(seen[0]) if seen else 0
        raise Stopped(
            f"stopped: {done} of {count(len(items), 'item')} finished, rows kept in {folder}; "
            "run the same command again to go on"
        ) from None
    return _report(comparison, folder, wide=wide, as_json=as_json)


def _report(comparison: Comparison, folder: Path, *, wide: bool, as_json: bool) -> int:
    from agentflow.evaluation.report.terminal import ComparisonView
    from agentflow.evaluation.report.write import write_reports
    from agentflow.evaluation.summary import summarize

    summary = summarize(comparison)
    paths = write_reports(comparison, folder, summary)
    if as_json:
        print_json(json.loads(paths["json"].read_text(encoding="utf-8")))
    else:
        console = Console(width=WIDE, highlight=False) if wide else out
        console.print(ComparisonView(summary, wide=wide, report=paths["html"]))
    failed = [row for row in comparison.rows if row.error and not row.impossible]
    for row in failed[:5]:
        err.print(f"[red]failed[/] {plain(row.arm)}: {plain(row.error)}", soft_wrap=True)
    return 1 if failed else 0


def _untrained() -> str:
    """Every channel that needs no training, text first: it is what the others are compared with."""
    from agentflow.channels.registry import channel_names, get_channel

    names = [name for name in channel_names() if not get_channel(name).trains]
    return ",".join(sorted(names, key=lambda name: name != "text"))


def _folder(workflow: Workflow, task: Task, data: Path | None, items: int, seed: int) -> Path:
    """Where a comparison goes by default: the same command finds its folder again, and another does not."""
    from blake3 import blake3

    what = [workflow.model_dump_json(), task.name, task.settings.model_dump_json(), str(data)]
    mark = blake3("\n".join(what).encode()).hexdigest()[:6]
    return Path("runs", "compare", f"{workflow.name}-n{items}-seed{seed}-{mark}")


def _published(file: Path | None) -> tuple[dict[str, str], ...]:
    """Figures of papers, from a JSON file."""
    if file is None:
        return ()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The published figures can't be read: {error.strerror}.", where=str(file)) from None
    except ValueError as error:
        raise UserError(f"The published figures are not JSON: {error}.", where=str(file)) from None
    keys = {"name", "figure", "source"}
    if not isinstance(found, list) or not all(isinstance(f, dict) and set(f) == keys for f in found):
        raise UserError(
            "Published figures are a list of objects with name, figure and source.",
            where=str(file),
            fix='Write [{"name": "…", "figure": "…", "source": "…"}].',
        )
    return tuple({key: str(value) for key, value in f.items()} for f in found)
