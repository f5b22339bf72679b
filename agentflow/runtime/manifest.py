"""What a run was started with: enough to draw it, and to go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentflow.runtime.binding import Binding
from agentflow.runtime.options import RunOptions
from agentflow.workflow.folding import folded, folded_edges
from agentflow.workflow.frames import address
from agentflow.workflow.parts import ToolNode
from agentflow.workflow.schema import Workflow

ONLY_ITEM = "run"
"""The id of the one item of a run on inputs."""


def manifest(
    binding: Binding, options: RunOptions, *, channel: str | Mapping[str, Any] | None, **more: Any
) -> dict[str, Any]:
    """What `run.json` holds. Nodes and edges are as people see them: in all rounds of a loop as one.

    Args:
        channel: that the edges were put on, None where each kept its own.
        more: where the items come from: `inputs`, or a task and its data.
    """
    workflow = binding.workflow
    graph = folded(workflow, [made.name for made in binding.channels])
    return {
        **doers(binding),
        "file": file_of(workflow),
        "channel": channel,
        "seed": options.seed,
        "keep_payloads": options.keep_payloads,
        "nodes": list(graph),
        "edges": [list(edge) for edge in folded_edges(graph)],
        "negotiated": [told.to_json() for told in binding.settled],
        **more,
    }


def doers(binding: Binding) -> dict[str, dict[str, str]]:
    """Who does the work of each node, as people see it: an agent and its model, or a tool."""
    workflow = binding.workflow
    found: dict[str, dict[str, str]] = {"agents": {}, "models": {}, "tools": {}}
    for name, node in workflow.nodes.items():
        if isinstance(node, ToolNode):
            found["tools"][address(name)] = node.tool
        else:
            found["agents"][address(name)] = node.agent
            found["models"][address(name)] = binding.model_of(name).model
    return found


def file_of(workflow: Workflow) -> str:
    """Where a workflow was read from; as a whole path, so that it is found from another folder as well."""
    path = Path(workflow.file)
    return str(path.resolve()) if path.is_file() else workflow.file
