"""`agentflow payload`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from agentflow.cli.common import load_engines, signing_key
from agentflow.cli.console import amount, out, plain, print_json
from agentflow.cli.exchanging import receive, send
from agentflow.cli.options import FILE, json_option
from agentflow.errors import PayloadError


@click.group("payload")
def command() -> None:
    """Look into payload files, send them to other programs, and receive them."""


@command.command("inspect", short_help="Verify a file and say what it is.")
@click.argument("file", type=FILE)
@click.option("--for", "model", metavar="MODEL", help="Also say whether it fits this model, which is loaded for it.")
@click.option("--key-file", type=FILE, metavar="FILE", help="Refuse it unless it is signed with this key.")
@json_option
def inspect(file: Path, model: str | None, key_file: Path | None, as_json: bool) -> None:
    """Verify FILE and say what it is: channel, sender, model, positions, bytes. Its text is not shown.

    `agentflow run … --keep-payloads` writes such files into the run's folder.

    \b
    agentflow payload inspect read.safetensors --for smollm2-135m
    """
    from agentflow.kv.wire import describe

    key = signing_key(key_file)
    found = describe(file, key=key)
    if model:
        _require(file, key, model)
        found["fits"] = model
    if as_json:
        print_json(found)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _lines(found):
        table.add_row(f"[dim]{name}[/]", plain(value))
    out.print(table)


def _require(file: Path, key: bytes | None, model: str) -> None:
    from agentflow.kv.wire import read_payload
    from agentflow.models.spec import resolve_model

    spec = resolve_model(model)
    payload = read_payload(file, key=key)
    engine = load_engines([spec]).get(spec)
    try:
        payload.require(engine.fingerprint)
    except PayloadError as error:
        raise PayloadError(error.what, where=error.where or str(file), fix=error.fix) from None


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [("file", amount(found["file_bytes"]))]
    for section in ("header", "body"):
        for name, value in found[section].items():
            if isinstance(value, dict):
                lines += [(f"{name}.{key}", str(inner)) for key, inner in value.items()]
            elif value not in (None, (), []):
                lines.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    if "fits" in found:
        lines.append(("fits", found["fits"]))
    return lines


command.add_command(send)
command.add_command(receive)
