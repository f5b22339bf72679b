"""What several verbs share: loading workflows and engines, the signing key, and the end of an interrupted run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.console import count, err
from agentflow.cli.live import waiting
from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.models.pool import EnginePool
    from agentflow.runtime.events import Event
    from agentflow.tasks.base import Item, Task
    from agentflow.workflow.schema import Workflow

KEY_VARIABLE = "AGENTFLOW_SIGNING_KEY"
TOKEN_VARIABLE = "AGENTFLOW_TOKEN"  # noqa: S105 - where it is, not what it is


class Stopped(click.exceptions.Abort):
    """Ctrl-C in a run; says what is left of it."""


class Tally:
    """A listener that counts items, to say how far an interrupted run came."""

    def __init__(self) -> None:
        self.items = self.finished = self.nodes = 0

    def __call__(self, event: Event) -> None:
        """Take in one event; runs that follow each other add up."""
        if event.kind == "run_started":
            self.items += event.data["items"]
        elif event.kind in ("node_finished", "node_reused"):
            self.nodes += 1
        elif event.kind == "item_finished" and not event.data["failed"]:
            self.finished += 1


@contextmanager
def stoppable(runs: Path, go_on: str) -> Iterator[Tally]:
    """Turn Ctrl-C into `Stopped`, which says what is stored, and the command to go on with."""
    tally = Tally()
    try:
        yield tally
    except KeyboardInterrupt:
        if not tally.items:
            raise
        done = f"{tally.finished} of {count(tally.items, 'item')} finished"
        stored = f"{count(tally.nodes, 'result')} stored below {runs}" if tally.nodes else "nothing to keep yet"
        raise Stopped(f"stopped: {done}, {stored}\ngo on with: {go_on}") from None


def workflow_on(ref: str, channel: str | None) -> Workflow:
    """A workflow by path or shipped name, with every edge that is not fixed on `channel` where one is given."""
    from agentflow.cli.specs import channel_spec
    from agentflow.workflow.loader import load_workflow

    workflow = load_workflow(ref)
    if channel is None:
        return workflow
    spec = channel_spec(channel)  # a clear error before the edges are replaced
    require_edges(workflow, "--channel")
    return workflow.with_channel(spec)


def settled_line(entry: Mapping[str, Any]) -> str:
    """What `auto` has become on one edge, as `validate`, `graph` and `runs show` say it."""
    return f"{entry['from']} -> {entry['to']}: auto is {entry['channel']} ({entry['why']})"


def items_for(workflow: Workflow, task: Task, data: Path | None, limit: int | None, seed: int) -> list[Item]:
    """The task's items, once it is clear that they hold what the workflow needs."""
    from agentflow.evaluation.inputs import inputs_of

    items = task.items(data=data, limit=limit, seed=seed)
    for item in items[:1]:
        inputs_of(workflow, item)
    return items


def require_edges(workflow: Workflow, option: str) -> None:
    """Refuse to change the channel of messages that don't exist, or that are all fixed."""
    if all(edge.fixed for edge in workflow.edges):
        what = "sends its messages over fixed channels" if workflow.edges else "sends no messages"
        raise UserError(
            f"The workflow '{workflow.name}' {what}, so there is no channel to choose.",
            where=option,
            fix="Leave it out, or add `edges:` that are not fixed to the workflow.",
        )


def load_engines(specs: Sequence[Any]) -> EnginePool:
    """Load every model before the clock starts, so that timings don't hold it."""
    from agentflow.models.pool import EnginePool

    with waiting(err) as progress:
        return _filled(EnginePool(progress), specs)


@contextmanager
def loader(executor: str) -> Iterator[Callable[[Sequence[Any]], EnginePool]]:
    """What loads models: into this process, or onto a Ray cluster that is let go of when the block ends."""
    if executor == "local":
        yield load_engines
        return
    from agentflow.runtime.executors.ray import RayCluster

    with ExitStack() as stack:

        def load(specs: Sequence[Any]) -> EnginePool:
            with waiting(err) as progress:
                progress("connecting to Ray", None)
                return _filled(stack.enter_context(RayCluster(progress=progress)).engines, specs)

        yield load


def _filled(pool: EnginePool, specs: Sequence[Any]) -> EnginePool:
    pool.require(specs)
    for spec in dict.fromkeys(specs):
        pool.speaker(spec)
    return pool


def check_runs_folder(folder: Path, option: str = "--runs") -> None:
    """Refuse a folder that can't take a run, before any model is loaded for it. Nothing is made."""
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UserError(f"Runs can't be kept here: {there} is not a folder.", where=f"{option} {folder}")
    if not os.access(there, os.W_OK | os.X_OK):
        fix = f"Name another folder with {option}."
        raise UserError(f"Runs can't be kept here: {there} can't be written to.", where=f"{option} {folder}", fix=fix)


def signing_key(path: Path | None) -> bytes | None:
    """The shared key: from a file, or from AGENTFLOW_SIGNING_KEY; None when neither is given."""
    return _secret(path, KEY_VARIABLE, "key")


def access_token(path: Path | None) -> str:
    """The token of a receiver: from a file, or from AGENTFLOW_TOKEN.

    Raises:
        UserError: there is none, or it is no text.
    """
    found = _secret(path, TOKEN_VARIABLE, "token")
    if found is None:
        raise UserError(
            "A receiver and those who send to it need a token.",
            where="--token-file",
            fix=f"Name a file that holds it, or put it into {TOKEN_VARIABLE}. Make one: openssl rand -hex 32.",
        )
    try:
        return found.decode("ascii")
    except UnicodeDecodeError:
        raise UserError("A token is ASCII text.", where=str(path or TOKEN_VARIABLE)) from None


def _secret(path: Path | None, variable: str, what: str) -> bytes | None:
    if path is None:
        return os.environ.get(variable, "").encode() or None
    try:
        found = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"The {what} file can't be read: {error.strerror}.", where=str(path)) from None
    if not found:
        raise UserError(f"The {what} file is empty.", where=str(path))
    return found
