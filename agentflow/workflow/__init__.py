"""Workflows in YAML: reading, checking, drawing, and rendering their prompts. Knows no tensor."""

from agentflow.workflow.drawing import to_mermaid, to_tree
from agentflow.workflow.fields import Generation, ModelRef
from agentflow.workflow.graph import ancestors, build_graph, find_cycle, sinks, topological_order
from agentflow.workflow.inputs import resolve_inputs
from agentflow.workflow.loader import load_workflow, parse_workflow
from agentflow.workflow.location import Location
from agentflow.workflow.parts import Agent, ChannelSpec, Defaults, Edge, InputSpec, MapSpec, Node, TaskSpec, ToolNode
from agentflow.workflow.problems import Problem, WorkflowProblemsError, raise_problems
from agentflow.workflow.schema import Workflow
from agentflow.workflow.source import Source, parse_yaml, read_yaml
from agentflow.workflow.templates import TemplateError, evaluate, names, render, render_value

__all__ = [
    "Agent",
    "ChannelSpec",
    "Defaults",
    "Edge",
    "Generation",
    "InputSpec",
    "Location",
    "MapSpec",
    "ModelRef",
    "Node",
    "Problem",
    "Source",
    "TaskSpec",
    "TemplateError",
    "ToolNode",
    "Workflow",
    "WorkflowProblemsError",
    "ancestors",
    "build_graph",
    "evaluate",
    "find_cycle",
    "load_workflow",
    "names",
    "parse_workflow",
    "parse_yaml",
    "raise_problems",
    "read_yaml",
    "render",
    "render_value",
    "resolve_inputs",
    "sinks",
    "to_mermaid",
    "to_tree",
    "topological_order",
]
