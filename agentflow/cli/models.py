"""`agentflow models`."""

from __future__ import annotations

import click
from rich.markup import escape
from rich.table import Table

from agentflow.cli.common import engine_pool
from agentflow.cli.console import err, out, print_json


@click.command("models")
@click.argument("name", required=False)
@click.option("--fetch", is_flag=True, help="Get the weights of NAME and load it once.")
@click.option("--json", "as_json", is_flag=True)
def command(name: str | None, fetch: bool, as_json: bool) -> None:
    """List the models that have a config, or show NAME: a config, a folder, or a hub id (owner/name)."""
    from agentflow.models.spec import model_names, resolve_model

    specs = [resolve_model(n) for n in ([name] if name else model_names())]
    loaded = [engine_pool(err).get(spec) for spec in specs] if fetch else []
    if as_json:
        marks = {e.loaded.spec: e.fingerprint.weights for e in loaded}
        print_json([{**s.model_dump(), **({"weights": marks[s]} if s in marks else {})} for s in specs])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("model", "source", "dtype", "device", "what"):
        table.add_column(column)
    for spec in specs:
        table.add_row(escape(spec.model), escape(spec.source), spec.dtype, spec.device, escape(spec.description))
    out.print(table)
    for engine in loaded:
        mark = engine.fingerprint
        out.print(
            f"{mark.model}: {mark.geometry}, {engine.loaded.dtype}, {engine.loaded.device}, weights {mark.weights[:16]}"
        )
