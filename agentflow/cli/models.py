"""`agentflow models`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from agentflow.cli.common import load_engines
from agentflow.cli.console import count, out, plain, print_json
from agentflow.cli.options import FILE, json_option
from agentflow.cli.stepping import Shown, find_recipe
from agentflow.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from agentflow.adapters.derive.distilling import Step
    from agentflow.models.spec import ModelSpec


@click.group("models")
def command() -> None:
    """Look after models: list and fetch them, or make a smaller one of one that is there."""


@command.command("list", short_help="Which models have a config.")
@json_option
def list_models(as_json: bool) -> None:
    """List the models that have a config, here or among those that ship.

    \b
    agentflow models list
    """
    from agentflow.models.spec import model_names, resolve_model

    specs = [resolve_model(name) for name in model_names()]
    if as_json:
        print_json([spec.model_dump() for spec in specs])
        return
    out.print(_table(specs))


@command.command("show", short_help="What a model is, and whether it can be had.")
@click.argument("name")
@click.option("--fetch", is_flag=True, help="Get the weights and load them once; ask the endpoint of a remote model.")
@json_option
def show(name: str, fetch: bool, as_json: bool) -> None:
    """Show NAME: a model with a config, a folder, or a hub id (owner/name).

    \b
    agentflow models show smollm2-135m --fetch
    """
    from agentflow.models.spec import resolve_model

    spec = resolve_model(name)
    loaded = load_engines([spec]).get(spec).loaded if fetch and spec.remote is None else None
    served = _served(spec) if fetch and spec.remote is not None else None
    if as_json:
        print_json({**spec.model_dump(), **({"weights": loaded.fingerprint.weights} if loaded else {})})
        return
    out.print(_table([spec]))
    if served:
        out.print(f"reached: one of {count(len(served), 'model')} served there", soft_wrap=True)
    if loaded:
        mark, dtype = loaded.fingerprint, str(loaded.dtype).removeprefix("torch.")
        out.print(
            f"loaded: {plain(mark.geometry)}, {dtype}, {loaded.device}, weights {mark.weights[:16]}", soft_wrap=True
        )


@command.command("derive", short_help="Make a smaller model of another one.")
@click.argument("recipe")
@click.option("--to", "target", type=FILE, metavar="FOLDER", help="Where the model goes (default: the cache folder).")
@click.option("--work", type=FILE, metavar="FOLDER", help="Where the checkpoint is kept (default: runs/derive/RECIPE).")
@json_option
def derive(recipe: str, target: Path | None, work: Path | None, as_json: bool) -> None:
    """Make the model of RECIPE, a file or a name in `configs/derive`: layers are left out, the rest is healed.

    The healed layers learn to say what the original says, on text that it writes itself or that the recipe names.
    Stopped at any moment, the same command goes on from the last checkpoint. In the cache folder the model is found by
    its name; in another one by the folder.

    \b
    agentflow models derive smollm2-135m-26
    """
    from agentflow.adapters.derive.distilling import derive as make
    from agentflow.adapters.derive.recipe import Derivation
    from agentflow.folders import cache_root
    from agentflow.models.spec import resolve_model
    from agentflow.workflow.configs import load_config

    path = find_recipe("derive", recipe)
    chosen = load_config(path, Derivation)
    # Weights that learn need the room of 32 bits.
    spec = resolve_model(chosen.teacher).model_copy(update={"dtype": "float32"})
    teacher = load_engines([spec]).get(spec)
    goal = target or cache_root() / "models" / chosen.model
    where = work or Path("runs") / "derive" / path.stem
    with Shown("derive", chosen.steps) as shown:
        metrics = make(chosen, teacher, where, goal, shown.wait, lambda step: _take(shown, step))
    if as_json:
        print_json({"model": str(goal), "metrics": metrics})
        return
    table = Table(box=None, pad_edge=False)
    for name in (f"{metrics['held_out_tokens']:,} held-out tokens", "NLL", "KL to the original"):
        table.add_column(name, justify="left" if "held" in name else "right")
    for label, key in (("the original", "teacher"), ("layers left out", "before"), ("healed", "after")):
        found = metrics[key]
        table.add_row(label, f"{found['nll']:.3f}", f"{found.get('kl', 0.0):.3f}")
    out.print(table)
    out.print(f"model: {plain(goal)}", soft_wrap=True)


def _served(spec: ModelSpec) -> list[str]:
    """What the endpoint of a remote model serves; an error, where it is not that model."""
    from agentflow.models.remote import RemoteModel

    model = RemoteModel(spec)
    served = model.names()
    if model.endpoint.name not in served:
        what = f"{model.endpoint.url} answers, but serves no model '{model.endpoint.name}'."
        raise UserError(what, fix=did_you_mean(model.endpoint.name, served))
    return served


def _take(shown: Shown, step: Step) -> None:
    found = step.validated
    told = ""
    if found is not None:
        told = f"held out: KL {found.kl:.3f}, NLL {found.nll:.3f} (the original: {found.teacher:.3f})"
    shown.take(step.step, step.loss, step.rate, step.tokens_per_second, told)


def _table(specs: Sequence[ModelSpec]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("model", "source", "dtype", "device", "what"):
        table.add_column(column)
    for spec in specs:
        where = ("–", "remote") if spec.remote is not None else (spec.dtype, spec.device)
        table.add_row(*(plain(cell) for cell in (spec.model, spec.where, *where, spec.description)))
    return table
