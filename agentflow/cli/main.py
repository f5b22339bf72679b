"""The command line. Verbs are imported when they are called, so that `--help` needs no torch."""

from __future__ import annotations

import importlib
import sys

import click

from agentflow import __version__
from agentflow.errors import UserError

VERBS = {
    "run": "Run a workflow on inputs, or over a task's items.",
    "compare": "Run a workflow over several channels and compare them.",
    "validate": "Check a workflow without running it.",
    "graph": "Draw a workflow as a tree or as Mermaid.",
    "models": "List models, or fetch one.",
    "channels": "List channels and their settings.",
    "payload": "Look into payload files.",
    "doctor": "Say what this machine offers and what is missing.",
}


class Verbs(click.Group):
    """One module for each verb, loaded when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of their usefulness."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module; its command has the verb's name."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"agentflow.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentflow")
def cli() -> None:
    """Multi-agent workflows whose agents hand each other KV caches instead of strings."""


def main() -> None:
    """Run the command line: exit code 0 done, 1 a node failed, 2 the input is wrong, 130 stopped."""
    try:
        code = cli.main(standalone_mode=False)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(0)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("stopped", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
