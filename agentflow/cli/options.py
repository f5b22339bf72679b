"""Options that several verbs share, and the settings they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from agentflow.runtime.options import Overlap, RunOptions

Function = Callable[..., Any]
FILE = click.Path(path_type=Path)
"""A path as it stands: whoever reads it says what is wrong with it."""


class Count(click.ParamType[int]):
    """A whole number, at least 1."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it, or say what was expected."""
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"it must be a whole number, at least 1, not '{value}'.", param, ctx)
        return number


@dataclass(frozen=True)
class RunSettings:
    """How `run` and `compare` run.

    Attributes:
        batch: units of one model that are answered as one batch.
        per_device: models of one device that work at the same time.
        overlap: whether hand-overs are made while the model decodes for others.
        runs: the folder that holds stored runs.
        as_json: print the result for machines.
        keep_going: after a failure, run what does not depend on it.
        until: run this node and what it depends on.
        tools: a Python file whose functions may be called.
        keep_payloads: write every payload into the run's folder, signed with `key` where there is one.
        dry: only say what would be done.
        otel: tell the run as OpenTelemetry spans.
        executor: where models run, `local` or `ray`.
    """

    seed: int
    batch: int
    overlap: Overlap
    runs: Path
    as_json: bool
    keep_going: bool = True
    until: str | None = None
    tools: Path | None = None
    keep_payloads: bool = False
    key: bytes | None = None
    dry: bool = False
    otel: bool = False
    executor: str = "local"
    per_device: int | None = None

    def options(self, *, reuse: bool = True) -> RunOptions:
        """The same as the orchestrator takes it; without `reuse` every receiver pays for what it is sent."""
        from agentflow.runtime.options import RunOptions

        return RunOptions(
            seed=self.seed,
            max_batch=self.batch,
            per_device=self.per_device,
            reuse=reuse,
            overlap=self.overlap,
            keep_going=self.keep_going,
            until=self.until,
            keep_payloads=self.keep_payloads,
            signing_key=self.key,
        )


def run_options(batch: int) -> Callable[[Function], Function]:
    """Give a verb the options of every new run; they reach it as one argument, `settings`."""
    seed = click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds give equal answers.")

    def decorate(function: Function) -> Function:
        @wraps(function)
        def verb(seed: int, settings: RunSettings, **others: Any) -> Any:
            return function(settings=replace(settings, seed=seed), **others)

        return seed(going_options(batch)(verb))

    return decorate


def going_options(batch: int) -> Callable[[Function], Function]:
    """The same for a run that has its seed."""
    decorators = [
        click.option(
            "--batch",
            type=Count(),
            default=batch,
            show_default=True,
            help="Units answered as one batch; 1 keeps first-token times comparable.",
        ),
        click.option(
            "--per-device",
            type=Count(),
            help="Models of one device that work at the same time; left out: all that have something to do.",
        ),
        click.option(
            "--overlap",
            type=click.Choice(["auto", "on", "off"]),
            default="auto",
            show_default=True,
            help="Make hand-overs while the model decodes for others (auto: on a GPU), and let receivers over c2c read "
            "the sender's conversation while it answers (auto: on another device). Answers are the same.",
        ),
        click.option(
            "--executor",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Run models in this process, or on a Ray cluster: that of RAY_ADDRESS, else the one of this "
            "machine, else one started for this run.",
        ),
        click.option(
            "--keep-going/--fail-fast",
            default=True,
            show_default=True,
            help="After a failure, run what does not depend on it, or start nothing more.",
        ),
        click.option("--until", metavar="NODE", help="Run this node and what it depends on, and nothing else."),
        tools_option,
        runs_option,
        json_option,
    ]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def verb(
            batch: int,
            per_device: int | None,
            overlap: Overlap,
            executor: str,
            keep_going: bool,
            until: str | None,
            tools_file: Path | None,
            runs: Path,
            as_json: bool,
            **others: Any,
        ) -> Any:
            made = RunSettings(0, batch, overlap, runs, as_json, keep_going, until, tools_file, per_device=per_device)
            return function(settings=replace(made, executor=executor), **others)

        wrapped: Function = verb
        for decorator in reversed(decorators):
            wrapped = decorator(wrapped)
        return wrapped

    return decorate


otel_option = click.option(
    "--otel", is_flag=True, help="Send spans of the run where the OTEL_* variables say: sizes and times, never words."
)
dry_option = click.option(
    "--dry-run", "dry", is_flag=True, help="Say what would run, what is done, and why; load no model, write nothing."
)
runs_option = click.option(
    "--runs", type=FILE, default=Path("runs"), show_default=True, help="Folder where runs are kept."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
task_option = click.option("--task", "task_name", metavar="TASK", help="Score as this task, not as the workflow's own.")
data_option = click.option("--data", type=FILE, metavar="FILE", help="The task's data file: JSON or JSONL, also .gz.")
tools_option = click.option(
    "--tools", "tools_file", type=FILE, metavar="FILE", help="A Python file whose functions the workflow may call."
)
channel_option = click.option(
    "--channel",
    metavar="CHANNEL",
    help="Send every message over this channel, but for fixed edges: NAME or {name: NAME, setting: value}.",
)
