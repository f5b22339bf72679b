"""`agentflow init`."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from pathlib import Path

import click

from agentflow.cli.console import out, plain, print_json
from agentflow.cli.options import FILE, json_option
from agentflow.errors import UserError

FILES = ("workflow.yaml", "agents/reader.yaml", "README.md")
DATA = "facts.json"
SCHEMAS = ("workflow", "agent")
"""What editors check the files by; each names its own in its first line."""


@click.command("init")
@click.argument("folder", metavar="DIR", type=FILE)
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Write a small project that runs into DIR: a workflow, an agent, data, a README, and schemas for editors.

    Nothing is overwritten.

    \b
    agentflow init lockers
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "It is not empty." if folder.is_dir() else "It is no folder."
        raise UserError(what, where=str(folder), fix="Name a folder that is not there yet.")
    try:
        written = [_write(folder / name, _shipped(name)) for name in FILES]
        written.append(_write(folder / DATA, _facts()))
        written += [_write(folder / "schema" / f"{kind}.schema.json", _schema(kind)) for kind in SCHEMAS]
    except OSError as error:
        raise UserError(f"The project can't be written: {error.strerror}.", where=str(folder)) from None
    if as_json:
        print_json({"written": [str(path) for path in written]})
        return
    for path in written:
        out.print(f"written: {plain(path)}", soft_wrap=True)
    run = f"agentflow run workflow.yaml --inputs {DATA}"
    out.print(f"\ncd {plain(shlex.quote(str(folder)))}\n{run}", soft_wrap=True)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def _shipped(name: str) -> str:
    return files("agentflow.cli").joinpath("project", name).read_text(encoding="utf-8")


def _schema(kind: str) -> str:
    from agentflow.runtime.editor_schema import editor_schema

    return json.dumps(editor_schema(kind), indent=1, ensure_ascii=False) + "\n"


def _facts() -> str:
    from agentflow.tasks.registry import make_task

    (item,) = make_task("private_facts", {"level": "easy", "questions": 2}).items(data=None, limit=1, seed=0)
    return json.dumps({name: item.inputs[name] for name in ("facts", "questions")}, indent=1) + "\n"
