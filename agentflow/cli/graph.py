"""`agentflow graph`."""

from __future__ import annotations

import click

from agentflow.cli.common import workflow_on


@click.command("graph")
@click.argument("workflow")
@click.option("--format", "form", type=click.Choice(["tree", "mermaid"]), default="tree", show_default=True)
@click.option("--channel", help="Show every message on this channel.")
def command(workflow: str, form: str, channel: str | None) -> None:
    """Draw WORKFLOW: as a tree for the terminal, or as Mermaid for a page."""
    from agentflow.workflow.drawing import to_mermaid, to_tree

    loaded = workflow_on(workflow, channel)
    drawn = to_mermaid(loaded) if form == "mermaid" else to_tree(loaded)
    click.echo(drawn if isinstance(drawn, str) else "\n".join(drawn))
