"""Tool nodes joined to their tools: names, arguments, and the types of what is written out, checked before a run."""

from __future__ import annotations

from collections.abc import Iterator

from agentflow.tools import Tool, Toolbox, ToolError
from agentflow.workflow.parts import ToolNode, texts_in
from agentflow.workflow.problems import Problem
from agentflow.workflow.schema import Workflow


def bound_tools(workflow: Workflow, toolbox: Toolbox, problems: list[Problem]) -> dict[str, Tool]:
    """The tool of every node that has one; what is wrong with them is added to `problems`."""
    found: dict[str, Tool] = {}
    for name, node in workflow.nodes.items():
        if not isinstance(node, ToolNode):
            continue
        try:
            found[name] = tool = toolbox.get(node.tool)
        except ToolError as error:
            what = error.what[:1].lower() + error.what[1:].rstrip(".")
            problems.append(workflow.problem(("nodes", name, "tool"), what, error.fix or ""))
            continue
        problems += _misuses(workflow, name, node, tool)
    return found


def _misuses(workflow: Workflow, name: str, node: ToolNode, tool: Tool) -> Iterator[Problem]:
    known = set(tool.parameters)
    for misuse in tool.misuses(node.arguments):
        if misuse.argument is not None:
            path = ("nodes", name, "with", misuse.argument)
            yield workflow.problem(path, misuse.what, misuse.fix, key=True)
        else:
            inside = ("nodes", name, "with") if node.arguments else ("nodes", name, "tool")
            yield workflow.problem(inside, misuse.what, misuse.fix)
    for argument, value in node.arguments.items():
        is_written_out = not any("{" in text for _, text in texts_in(value))
        if argument in known and is_written_out and (unfit := tool.misfit(argument, value)):
            yield workflow.problem(("nodes", name, "with", argument), unfit)
