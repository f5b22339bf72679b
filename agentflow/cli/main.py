"""The command line. Verbs are imported when they are called, so that `--help` needs no torch."""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from agentflow import __version__
from agentflow.cli.console import complain
from agentflow.errors import UserError, did_you_mean

VERBS = {
    "init": "Write a small project that runs.",
    "run": "Run a workflow on inputs, or over a task's items.",
    "runs": "List, show, resume, export or remove stored runs.",
    "compare": "Run a workflow over several channels and compare them.",
    "validate": "Check workflows without running them.",
    "schema": "Print the JSON Schema of a kind of file, for editors.",
    "graph": "Draw a workflow as a tree or as Mermaid.",
    "models": "List models, fetch one, make a smaller one.",
    "channels": "List channels and their settings.",
    "train": "Train an adapter between two models.",
    "adapters": "List trained adapters, look into one, import published ones.",
    "calibrate": "Find the heads of a model that look where an answer is.",
    "payload": "Look into payload files; send and receive them.",
    "doctor": "Say what this machine offers and what is missing.",
}
DONE, FAILED, WRONG, BUG, STOPPED, UNREAD = 0, 1, 2, 70, 130, 141
"""Exit codes: done; an item failed; the input is wrong; a bug of ours; Ctrl-C; nobody reads the output."""

# What the machine refuses, wherever it happens: a full disk is no bug of ours.
_MACHINE = {errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG}


class Verbs(click.Group):
    """One module for each verb, loaded when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of their usefulness."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module; its command has the verb's name."""
        if cmd_name not in VERBS:
            ctx.fail(f"There is no verb '{cmd_name}'. {did_you_mean(cmd_name, VERBS)}")
        command = importlib.import_module(f"agentflow.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; a reader that went away (`| head`) ends it without a word, and with a code of its own."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is left in the buffer would fail once more when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(UNREAD) from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentflow")
def cli() -> None:
    """Multi-agent workflows whose agents hand each other KV caches instead of strings.

    \b
    agentflow run private_facts -n 2
    agentflow compare private_facts -n 4
    agentflow validate my.yaml
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the codes above."""
    # Threads that wait in a spin loop for a core that another program has got make everything several times slower
    # (measured: 2 to 5 x on two busy cores; a tenth is lost on quiet ones). Must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that can't show "→" shows "?"
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(arguments, prog_name="agentflow", standalone_mode=False)
    except (KeyboardInterrupt, click.exceptions.Abort) as stop:
        click.echo(str(stop) or "stopped", err=True)
        return STOPPED
    except Exception as error:  # noqa: BLE001 - the outermost place: what arrives here is told, not swallowed
        return _told(error)
    return code if isinstance(code, int) else DONE


def _told(error: Exception) -> int:
    """Tell what went wrong; the exit code says whose fault it is."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return DONE
    if isinstance(error, UserError):
        complain(error)
    elif isinstance(error, click.ClickException):
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "agentflow"
        complain(f"{error.format_message()}\nTry '{path} --help'.")
    elif isinstance(error, OSError) and error.errno in _MACHINE:
        complain(UserError(f"{error.strerror}.", where=str(error.filename) if error.filename else None))
    else:
        traceback.print_exception(error)
        click.echo(
            "\nThis is a bug in AgentFlow or in a plug-in, not a mistake of yours. "
            "Please report it with the lines above and the command you gave.",
            err=True,
        )
        return BUG
    return WRONG
