"""`agentflow channels`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from agentflow.cli.console import err, out, plain, print_json
from agentflow.cli.options import json_option
from agentflow.errors import ChannelError

if TYPE_CHECKING:
    from agentflow.channels.base import Channel


@click.command("channels")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the channels with their settings, or show channel NAME alone.

    \b
    agentflow channels
    agentflow channels text
    """
    classes = _classes(name)
    if as_json:
        print_json([_json(c) for c in classes])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("channel", "setting", "default", "what"):
        table.add_column(column)
    for c in classes:
        table.add_row(f"[bold]{plain(c.name)}[/]", "", "", plain(_summary(c)))
        for key, field in c.Settings.model_fields.items():
            default: Any = "required" if field.is_required() else field.default
            table.add_row("", plain(key), plain(default), plain(field.description or ""))
    out.print(table)


def _classes(name: str | None) -> list[type[Channel]]:
    from agentflow.channels.registry import channel_names, get_channel

    if name is not None:
        return [get_channel(name)]
    found = []
    for one in channel_names():
        try:
            found.append(get_channel(one))
        except ChannelError as error:  # somebody's broken plug-in doesn't hide the others
            err.print(f"[red]broken[/] {plain(error)}", soft_wrap=True)
    return found


def _summary(channel: type[Channel]) -> str:
    return (channel.__doc__ or "").strip().partition("\n")[0]


def _json(channel: type[Channel]) -> dict[str, Any]:
    settings = channel.Settings.model_json_schema().get("properties", {})
    return {"name": channel.name, "what": _summary(channel), "settings": settings}
