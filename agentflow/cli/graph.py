"""`agentflow graph`."""

from __future__ import annotations

import click

from agentflow.cli.common import workflow_on
from agentflow.cli.options import channel_option


@click.command("graph")
@click.argument("workflow")
@click.option(
    "--format",
    "form",
    type=click.Choice(["tree", "mermaid"]),
    default="tree",
    show_default=True,
    help="How to draw it.",
)
@channel_option
def command(workflow: str, form: str, channel: str | None) -> None:
    """Draw WORKFLOW: as a tree for the terminal, or as Mermaid for a page.

    \b
    agentflow graph hotpotqa
    agentflow graph hotpotqa --format mermaid
    """
    from agentflow.workflow.drawing import to_mermaid, to_tree

    loaded = workflow_on(workflow, channel)
    click.echo(to_mermaid(loaded).rstrip() if form == "mermaid" else "\n".join(to_tree(loaded)))
