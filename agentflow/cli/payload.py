"""`agentflow payload`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from agentflow.cli.common import signing_key
from agentflow.cli.console import amount, out, print_json


@click.group("payload")
def command() -> None:
    """Look into payload files."""


@command.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--for", "model", help="Also say whether it fits this model.")
@click.option("--key-file", type=click.Path(path_type=Path), help="Refuse it unless it is signed with this key.")
@click.option("--json", "as_json", is_flag=True)
def inspect(file: Path, model: str | None, key_file: Path | None, as_json: bool) -> None:
    """Verify FILE and say what it is: digest, channel, sender, model, positions, bytes. Its text is not shown."""
    from agentflow.kv.wire import describe, read_payload

    key = signing_key(key_file)
    found = describe(file, key=key)
    if model:
        from agentflow.cli.common import engine_pool
        from agentflow.cli.console import err
        from agentflow.models.spec import resolve_model

        read_payload(file, key=key).require(engine_pool(err).get(resolve_model(model)).fingerprint)
        found["fits"] = model
    if as_json:
        print_json(found)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _lines(found):
        table.add_row(f"[dim]{name}[/]", escape(value))
    out.print(table)


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [("file", amount(found["file_bytes"]))]
    for section in ("header", "body"):
        for name, value in found[section].items():
            if isinstance(value, dict):
                lines += [(f"{name}.{key}", str(inner)) for key, inner in value.items()]
            elif value not in (None, ()):
                lines.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    if "fits" in found:
        lines.append(("fits", found["fits"]))
    return lines
