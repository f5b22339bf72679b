"""`agentflow run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from agentflow.cli.common import check_runs_folder, signing_key
from agentflow.cli.going import go
from agentflow.cli.jobs import Source, asked_for, require_node, stored_job
from agentflow.cli.options import (
    FILE,
    Count,
    RunSettings,
    channel_option,
    data_option,
    dry_option,
    otel_option,
    run_options,
    task_option,
)
from agentflow.errors import UserError

_THE_RUNS_OWN = {
    "channel": "--channel",
    "task_name": "--task",
    "data": "--data",
    "limit": "--limit",
    "pairs": "--input",
    "inputs_file": "--inputs",
    "seed": "--seed",
    "keep_payloads": "--keep-payloads",
}


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
@click.option(
    "--resume", metavar="RUN", help="Go on with this run: a folder, a name below --runs, or `last`; what is done stays."
)
@click.option(
    "--force", "forced", multiple=True, metavar="NODE", help="With --resume: run this node in any case. Repeatable."
)
@dry_option
@otel_option
@click.pass_context
def command(
    context: click.Context,
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
    resume: str | None,
    forced: tuple[str, ...],
    dry: bool,
    otel: bool,
) -> int:
    """Run WORKFLOW: a YAML file, or the name of one that ships.

    With inputs it runs once and prints the outputs. Otherwise it runs over its task's items and prints their scores.

    \b
    agentflow run private_facts -n 4
    agentflow run hotpotqa --data dev.jsonl.gz -n 10 --channel text
    agentflow run my.yaml --input question="Who wrote Emma?"
    agentflow run private_facts --resume last --dry-run
    """
    settings = replace(settings, dry=dry, otel=otel)
    if resume is not None:
        _refuse_own(context)
        return resume_run(resume, settings, key_file, forced=forced, ref=workflow)
    if forced:
        raise UserError("A new run has no results yet.", where="--force", fix="Name a run with --resume.")
    if key_file is not None and not keep_payloads:
        raise UserError("A key signs kept payloads, and none are kept.", where="--key-file", fix="Add --keep-payloads.")
    settings = replace(settings, keep_payloads=keep_payloads, key=signing_key(key_file))
    check_runs_folder(settings.runs)
    source = Source(channel=channel, task=task_name, data=data, limit=limit)
    return go(asked_for(workflow, source, pairs, inputs_file, settings.seed), settings)


def resume_run(
    run: str, settings: RunSettings, key_file: Path | None, *, forced: tuple[str, ...], ref: str | None = None
) -> int:
    """Go on with a stored run; the exit code.

    Args:
        ref: the workflow, where it is not to be found where the run found it.
    """
    from agentflow.runtime.listing import find_run
    from agentflow.runtime.runs import check_form, read_manifest

    folder = find_run(run, settings.runs)
    check_form(folder)  # another version's manifest may lack what is read here
    manifest = read_manifest(folder)
    job = stored_job(ref, manifest, folder)
    for node in forced:
        require_node(job, node, "--force")
    keep = bool(manifest.get("keep_payloads"))
    settings = replace(settings, seed=int(manifest["seed"]), keep_payloads=keep, key=signing_key(key_file))
    every = [name for node in forced for name in job.workflow.members(node)]  # of a loop, in all rounds
    return go(job, settings, resumed=folder, forced=every)


def _refuse_own(context: click.Context) -> None:
    """Refuse what a stored run has settled, rather than leave it unheard."""
    for name, option in _THE_RUNS_OWN.items():
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            fix = "Leave it out, or start a new run."
            raise UserError("A run that is resumed keeps its own.", where=option, fix=fix)
