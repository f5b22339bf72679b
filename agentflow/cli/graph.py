"""`agentflow graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentflow.cli.common import settled_line, workflow_on
from agentflow.cli.options import channel_option

if TYPE_CHECKING:
    from agentflow.workflow.schema import Workflow


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

    loaded, told = _settled(workflow_on(workflow, channel))
    if form == "mermaid":
        click.echo(to_mermaid(loaded) + "".join(f"  %% {line}\n" for line in told), nl=False)
    else:
        click.echo("\n".join([*to_tree(loaded), *told]))


def _settled(workflow: Workflow) -> tuple[Workflow, list[str]]:
    """The workflow with the channels that `auto` has become, and why; models are looked up for that alone."""
    from agentflow.channels.negotiation import AUTO
    from agentflow.runtime.binding import bind

    if all(edge.channel.name != AUTO for edge in workflow.edges):
        return workflow, []
    binding = bind(workflow)
    return binding.workflow, [settled_line(settled.to_json()) for settled in binding.settled]
