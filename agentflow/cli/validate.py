"""`agentflow validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.common import settled_line, workflow_on
from agentflow.cli.console import complain, count, print_json
from agentflow.cli.options import channel_option, json_option, tools_option
from agentflow.errors import UserError

if TYPE_CHECKING:
    from agentflow.tools import Toolbox


@click.command("validate")
@click.argument("workflows", nargs=-1, required=True)
@channel_option
@tools_option
@json_option
def command(workflows: tuple[str, ...], channel: str | None, tools_file: Path | None, as_json: bool) -> int:
    """Check WORKFLOWS: syntax, names, templates, cycles, models, and whether each channel fits its pair of models.

    Nothing is loaded and nothing is run. Every file is checked; the exit code is 2 when something is wrong in one.

    \b
    agentflow validate private_facts hotpotqa
    agentflow validate my.yaml --channel cache
    """
    from agentflow.cli.specs import channel_spec
    from agentflow.tools import Toolbox

    if channel is not None:
        channel_spec(channel)  # once, and not as the fault of a file
    tools = Toolbox.from_file(tools_file)
    found = []
    for ref in workflows:
        try:
            found.append(_good(ref, channel, tools))
        except UserError as error:
            found.append({"file": ref, "valid": False, "problems": _problems(error)})
            if not as_json:
                complain(error)
            continue
        if not as_json:
            click.echo(_line(found[-1]))
    if as_json:
        print_json(found)
    return 0 if all(one["valid"] for one in found) else 2


def _good(ref: str, channel: str | None, tools: Toolbox) -> dict[str, Any]:
    from agentflow.runtime.binding import bind

    workflow = workflow_on(ref, channel)
    binding = bind(workflow, tools)
    return {
        "file": workflow.file,
        "valid": True,
        "workflow": workflow.name,
        "nodes": len(workflow.nodes),
        "edges": len(workflow.edges),
        "models": sorted({spec.model for spec in binding.models.values()}),
        "channels": sorted({channel.name for channel in binding.channels}),
        "negotiated": [settled.to_json() for settled in binding.settled],
    }


def _line(one: dict[str, Any]) -> str:
    models, channels = ", ".join(one["models"]), ", ".join(one["channels"]) or "none"
    sizes = f"{count(one['nodes'], 'node')}, {count(one['edges'], 'edge')}"
    lines = [f"{one['file']}: good. {sizes}, models: {models}, channels: {channels}"]
    lines += [f"  {settled_line(entry)}" for entry in one["negotiated"]]
    return "\n".join(lines)


def _problems(error: UserError) -> list[dict[str, Any]]:
    """Every mistake of one file for machines; those of its text with their place."""
    from agentflow.workflow.location import shown_path
    from agentflow.workflow.problems import WorkflowProblemsError

    if not isinstance(error, WorkflowProblemsError):
        return [{"what": error.what, "where": error.where, "fix": error.fix}]
    return [
        {
            "what": p.what,
            "where": f"{p.location.file}:{p.location.line}:{p.location.column}",
            "key": shown_path(p.path),
            "fix": p.fix or None,
        }
        for p in error.problems
    ]
