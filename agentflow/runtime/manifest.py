"""What a run was started with: enough to draw it, and to go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentflow.runtime.binding import Binding
from agentflow.runtime.options import RunOptions
from agentflow.workflow.folding import folded, folded_edges
from agentflow.workflow.frames import address
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
        "file": file_of(workflow),
        "channel": channel,
        "seed": options.seed,
        "keep_payloads": options.keep_payloads,
        "nodes": list(graph),
        "models": {
            address(node): binding.model_of(node).model for node in workflow.nodes if not workflow.is_tool(node)
        },
        "edges": [list(edge) for edge in folded_edges(graph)],
        "negotiated": [told.to_json() for told in binding.settled],
        **more,
    }


def file_of(workflow: Workflow) -> str:
    """Where a workflow was read from; as a whole path, so that it is found from another folder as well."""
    path = Path(workflow.file)
    return str(path.resolve()) if path.is_file() else workflow.file
