"""`agentflow channels`."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from agentflow.cli.console import out, print_json


@click.command("channels")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True)
def command(name: str | None, as_json: bool) -> None:
    """List the channels, or the settings of channel NAME."""
    from agentflow.channels.registry import channel_names, get_channel

    chosen = [name] if name else channel_names()
    classes = [get_channel(n) for n in chosen]
    if as_json:
        print_json(
            [{"name": c.name, "settings": c.Settings.model_json_schema().get("properties", {})} for c in classes]
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("channel", "setting", "default", "what"):
        table.add_column(column)
    for c in classes:
        table.add_row(f"[bold]{c.name}[/]", "", "", escape((c.__doc__ or "").strip().splitlines()[0]))
        for key, field in c.Settings.model_fields.items():
            default: Any = "required" if field.is_required() else field.default
            table.add_row("", key, escape(str(default)), escape(field.description or ""))
    out.print(table)
