"""`agentflow models`."""

from __future__ import annotations

import click
from rich.table import Table

from agentflow.cli.common import load_engines
from agentflow.cli.console import out, plain, print_json
from agentflow.cli.options import json_option
from agentflow.errors import UserError


@click.command("models")
@click.argument("name", required=False)
@click.option("--fetch", is_flag=True, help="Get the weights of NAME and load it once.")
@json_option
def command(name: str | None, fetch: bool, as_json: bool) -> None:
    """List the models that have a config, or show NAME: a config, a folder, or a hub id (owner/name).

    \b
    agentflow models
    agentflow models smollm2-135m --fetch
    """
    from agentflow.models.spec import model_names, resolve_model

    if fetch and name is None:
        raise UserError("Which model?", where="--fetch", fix="Name it: agentflow models NAME --fetch.")
    specs = [resolve_model(n) for n in ([name] if name else model_names())]
    loaded = [load_engines(specs).get(specs[0]).loaded] if fetch else []
    if as_json:
        weights = {model.spec: {"weights": model.fingerprint.weights} for model in loaded}
        print_json([{**spec.model_dump(), **weights.get(spec, {})} for spec in specs])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("model", "source", "dtype", "device", "what"):
        table.add_column(column)
    for spec in specs:
        table.add_row(*(plain(cell) for cell in (spec.model, spec.source, spec.dtype, spec.device, spec.description)))
    out.print(table)
    for model in loaded:
        mark, dtype = model.fingerprint, str(model.dtype).removeprefix("torch.")
        out.print(
            f"loaded: {plain(mark.geometry)}, {dtype}, {model.device}, weights {mark.weights[:16]}", soft_wrap=True
        )
