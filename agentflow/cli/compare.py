"""`agentflow compare`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from agentflow.cli.common import engine_pool, items_of, load_engines
from agentflow.cli.console import err, out, print_json
from agentflow.cli.live import live
from agentflow.cli.tables import figures_json, figures_table
from agentflow.errors import UserError


@click.command("compare")
@click.argument("workflow")
@click.option("--channels", default="text,cache", show_default=True, help="Channels, separated by commas.")
@click.option("--task", "task_name", help="Score as this task (default: the one the workflow names).")
@click.option("--data", type=click.Path(path_type=Path), help="The task's data file.")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=10, show_default=True, help="Take this many items.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Units answered as one batch; 1 keeps first-token times comparable.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where runs are kept.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    workflow: str,
    channels: str,
    task_name: str | None,
    data: Path | None,
    limit: int,
    seed: int,
    batch: int,
    runs: Path,
    as_json: bool,
) -> int:
    """Run WORKFLOW over each channel on the same items, and print what each costs and scores.

    \b
    agentflow compare private_facts -n 8
    agentflow compare hotpotqa --data dev.jsonl.gz -n 10 --channels text,cache
    """
    from agentflow.evaluation.compare import compare, task_of
    from agentflow.runtime.binding import bind
    from agentflow.runtime.events import Listener
    from agentflow.runtime.orchestrator import RunOptions
    from agentflow.workflow.loader import load_workflow

    names = [c.strip() for c in channels.split(",") if c.strip()]
    if not names:
        raise UserError("There is no channel to compare.", where="--channels", fix="Name some: --channels text,cache.")
    loaded = load_workflow(workflow)
    task = task_of(loaded, task_name)
    items = items_of(task, data, limit, seed)
    variants = [bind(loaded.with_channel(name)) for name in names]
    pool = engine_pool(err)
    load_engines(pool, [spec for b in variants for spec in b.models.values()])
    with ExitStack() as stack:
        views: list[ExitStack] = []

        def listener(channel: str) -> Sequence[Listener]:
            for view in views:
                view.close()
            views.append(stack.enter_context(ExitStack()))
            return [views[-1].enter_context(live(err, loaded, f"{loaded.name} over {channel}"))]

        rows = compare(loaded, task, items, names, pool, options=RunOptions(seed, batch), runs=runs, listener=listener)
    if as_json:
        print_json(
            {
                "workflow": loaded.name,
                "task": task.name,
                "seed": seed,
                "channels": [figures_json(r) for r in rows],
            }
        )
    else:
        out.print(figures_table(f"{loaded.name}: {len(items)} items, seed {seed}", rows))
    return 1 if any(i.error for r in rows for i in r.items) else 0
