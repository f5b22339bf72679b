"""`agentflow schema`."""

from __future__ import annotations

import click

from agentflow.cli.console import print_json


@click.command("schema")
@click.argument("kind", metavar="KIND")
def command(kind: str) -> None:
    """Print the JSON Schema of KIND of file (workflow, agent, model), for editors that check YAML as you write.

    It knows every channel and task that is installed here, with its settings. Write it into a file, and name that
    file in the first line of your YAML: # yaml-language-server: $schema=workflow.schema.json

    \b
    agentflow schema workflow
    agentflow schema agent
    """
    from agentflow.runtime.editor_schema import editor_schema

    print_json(editor_schema(kind))
