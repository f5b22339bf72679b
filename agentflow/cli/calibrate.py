"""`agentflow calibrate`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.progress import Progress
from rich.table import Table

from agentflow.cli.common import load_engines
from agentflow.cli.console import err, out, plain, print_json
from agentflow.cli.options import FILE, Count, json_option
from agentflow.errors import UserError


@click.command("calibrate")
@click.argument("model")
@click.option("-n", "--items", type=Count(), default=90, show_default=True, help="Ask so many generated questions.")
@click.option("--heads", type=Count(), default=8, show_default=True, help="Choose so many heads.")
@click.option("--seed", default=1, show_default=True, help="Of the generated facts.")
@click.option(
    "--out", "file", type=FILE, help="Write the weights here (default: where `head_weights: auto` finds them)."
)
@json_option
def command(model: str, items: int, heads: int, seed: int, file: Path | None, as_json: bool) -> None:
    """Find the heads of MODEL that look where an answer is, for the channel `latent_briefing`.

    Facts are generated, so that no data is needed; on a CPU a small model takes two minutes.

    \b
    agentflow calibrate smollm2-135m -n 6 --out heads.json
    """
    from agentflow.evaluation.calibration import calibrate_heads
    from agentflow.models.heads import own_file, save_weights
    from agentflow.models.spec import resolve_model

    if file is not None and not file.parent.is_dir():
        raise UserError("There is no such folder.", where=str(file.parent), fix="Make it, or leave --out away.")
    spec = resolve_model(model)
    engine = load_engines([spec]).get(spec)
    bar = Progress(console=err, disable=not err.is_terminal)
    with bar:
        task = bar.add_task("questions", total=items)
        found = calibrate_heads(engine, items=items, heads=heads, seed=seed, progress=lambda: bar.advance(task))
    where = file or own_file(engine.fingerprint)
    save_weights(where, found.weights)
    best = [{"layer": layer, "head": head, "auc": round(auc, 3)} for layer, head, auc in found.best()]
    if as_json:
        print_json({"file": str(where), "heads": best, "median_auc": round(float(found.auc.median()), 3)})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("layer", "head", "AUC"):
        table.add_column(column, justify="right")
    for head in best:
        table.add_row(str(head["layer"]), str(head["head"]), f"{head['auc']:.3f}")
    out.print(table)
    out.print(f"the median head has {float(found.auc.median()):.3f}; written: {plain(where)}", soft_wrap=True)
