"""`agentflow train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from agentflow.cli.common import load_engines
from agentflow.cli.console import out, plain, print_json
from agentflow.cli.options import FILE, Count, json_option
from agentflow.cli.stepping import Shown, find_recipe

if TYPE_CHECKING:
    from agentflow.adapters.training import Progress


@click.command("train")
@click.argument("recipe")
@click.option("--steps", type=Count(), help="Instead of the recipe's.")
@click.option(
    "--method",
    type=click.Choice(["closed-form", "gradient"]),
    help="Only what needs no gradient, or only what does (default: both, as the recipe says).",
)
@click.option("--out", "target", type=FILE, help="Where the bundle goes (default: configs/adapters/RECIPE).")
@click.option("--work", type=FILE, help="Where the checkpoint and the metrics are kept (default: runs/train/RECIPE).")
@json_option
def command(
    recipe: str, steps: int | None, method: str | None, target: Path | None, work: Path | None, as_json: bool
) -> None:
    """Train an adapter by RECIPE, a file or a name in `configs/train`; both models stay as they are.

    Stopped at any moment, the same command goes on from the last checkpoint. In the end stand the held-out answers,
    beside the receiver alone, a message of zeros, another item's message, and the sender alone.

    \b
    agentflow train c2c-self --steps 2
    """
    from agentflow.adapters.recipe import ClosedForm, Recipe
    from agentflow.adapters.training import METRICS, train
    from agentflow.models.spec import resolve_model
    from agentflow.workflow.configs import load_config

    path = find_recipe("train", recipe)
    chosen = load_config(path, Recipe)
    if steps is not None:
        chosen = chosen.model_copy(update={"steps": steps})
    if method == "closed-form":
        chosen = chosen.model_copy(update={"steps": 0, "closed_form": chosen.closed_form or ClosedForm()})
    elif method == "gradient":
        chosen = chosen.model_copy(update={"closed_form": None})
    specs = resolve_model(chosen.sender), resolve_model(chosen.receiver)
    pool = load_engines(specs)
    where = work or Path("runs") / "train" / path.stem
    goal = target or Path("configs") / "adapters" / path.stem
    with Shown("train", chosen.steps) as shown:

        def take(step: Progress) -> None:
            found = step.validated
            told = "" if found is None else f"held out: NLL {found.nll:.3f}, exact {found.exact:.1%}"
            shown.take(step.step, step.loss, step.rate, step.tokens_per_second, told)

        bundle = train(chosen, pool.get(specs[0]), pool.get(specs[1]), where, goal, take, shown.wait)
    metrics = bundle.card.metrics
    plot = _plot(where)
    if as_json:
        print_json({"bundle": str(bundle.folder), "metrics": metrics})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("held-out answers", "NLL", "exact"):
        table.add_column(name, justify="left" if name == "held-out answers" else "right")
    for name, found in metrics.items():
        if isinstance(found, dict):
            table.add_row(name, f"{found['nll']:.3f}", f"{found['exact']:.1%}")
    out.print(table)
    out.print(f"bundle: {plain(bundle.folder)} · log: {plain(where / METRICS)} · {plain(plot)}", soft_wrap=True)


def _plot(work: Path) -> Path:
    """Draw the loss and the held-out answers over the steps."""
    import json

    from matplotlib.figure import Figure

    from agentflow.adapters.training import METRICS

    log = json.loads((work / METRICS).read_text(encoding="utf-8"))["log"]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, label in (("loss", "training loss"), ("nll", "held-out NLL")):
        rows = [row for row in log if name in row]
        axes.plot([r["step"] for r in rows], [r[name] for r in rows], label=label, marker="o" if name == "nll" else "")
    axes.set_xlabel("step")
    axes.set_ylabel("nats per answer token")
    axes.legend()
    path = work / "loss.png"
    figure.savefig(path)
    return path
