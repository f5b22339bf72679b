"""What several verbs share: loading workflows and items, engines with a progress line, run options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.models.pool import EnginePool
    from agentflow.tasks.base import Item, Task
    from agentflow.workflow.schema import Workflow

KEY_VARIABLE = "AGENTFLOW_SIGNING_KEY"


def workflow_on(ref: str, channel: str | None) -> Workflow:
    """A workflow by path or shipped name, with every edge on `channel` where one is given."""
    from agentflow.channels.registry import get_channel
    from agentflow.workflow.loader import load_workflow

    workflow = load_workflow(ref)
    if channel is None:
        return workflow
    get_channel(channel)  # a clear error before the edges are replaced
    return workflow.with_channel(channel)


def items_of(task: Task, data: Path | None, limit: int | None, seed: int) -> list[Item]:
    """The task's items, from the file the user names where it needs one."""
    if task.needs_data and data is None:
        raise UserError(f"The task '{task.name}' needs a data file.", fix="Name one with --data FILE.")
    if data is not None and not task.needs_data and task.name != "debate":
        raise UserError(f"The task '{task.name}' generates its items; it takes no data file.", fix="Leave out --data.")
    return task.items(data=data, limit=limit, seed=seed)


def engine_pool(console: Console) -> EnginePool:
    """Engines that say on the console what they are waiting for."""

    from agentflow.models.pool import EnginePool

    def progress(what: str, _share: float | None) -> None:
        console.print(f"[dim]{what} …[/]")

    return EnginePool(progress)


def load_engines(pool: EnginePool, specs: Sequence[Any]) -> None:
    """Load every model before the clock starts, so that timings don't hold it."""
    for spec in dict.fromkeys(specs):
        pool.get(spec)


def signing_key(path: Path | None) -> bytes | None:
    """The shared key: from a file, or from AGENTFLOW_SIGNING_KEY; None when neither is given."""
    if path is not None:
        try:
            key = path.read_bytes().strip()
        except OSError as error:
            raise UserError(f"The key file can't be read: {error.strerror}.", where=str(path)) from None
    else:
        key = os.environ.get(KEY_VARIABLE, "").encode()
    if path is not None and not key:
        raise UserError("The key file is empty.", where=str(path))
    return key or None
