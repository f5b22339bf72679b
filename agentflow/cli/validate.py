"""`agentflow validate`."""

from __future__ import annotations

import click

from agentflow.cli.common import workflow_on
from agentflow.cli.console import print_json


@click.command("validate")
@click.argument("workflows", nargs=-1, required=True)
@click.option("--channel", help="Check with every message on this channel.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def command(workflows: tuple[str, ...], channel: str | None, as_json: bool) -> int:
    """Check WORKFLOWS: syntax, names, templates, cycles, models, and whether each channel fits its pair of models.

    Nothing is loaded and nothing is run. Exit code 2 when something is wrong; all mistakes are shown at once.
    """
    from agentflow.runtime.binding import bind

    found = []
    for ref in workflows:
        workflow = workflow_on(ref, channel)
        binding = bind(workflow)
        models = sorted({spec.model for spec in binding.models.values()})
        channels = sorted({c.name for c in binding.channels})
        found.append(
            {
                "file": workflow.file,
                "workflow": workflow.name,
                "nodes": len(workflow.nodes),
                "edges": len(workflow.edges),
                "models": models,
                "channels": channels,
            }
        )
        if not as_json:
            click.echo(
                f"{workflow.file}: good. {len(workflow.nodes)} nodes, {len(workflow.edges)} edges, "
                f"models {', '.join(models)}, channels {', '.join(channels) or 'none'}"
            )
    if as_json:
        print_json(found)
    return 0
