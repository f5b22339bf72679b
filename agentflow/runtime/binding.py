"""A workflow joined to the models and channels it names, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from agentflow.channels.base import Channel
from agentflow.channels.registry import channel_names, make_channel
from agentflow.errors import ChannelError, ModelError, UserError, did_you_mean
from agentflow.models.spec import ModelSpec, resolve_model
from agentflow.tasks.registry import make_task
from agentflow.workflow.location import KeyPath
from agentflow.workflow.parts import Edge
from agentflow.workflow.problems import Problem, raise_problems
from agentflow.workflow.schema import Workflow


@dataclass(frozen=True, eq=False)
class Binding:
    """A workflow that can run.

    Attributes:
        models: the model of each agent.
        channels: the channel of each edge, in the order of `workflow.edges`.
    """

    workflow: Workflow
    models: dict[str, ModelSpec]
    channels: tuple[Channel, ...]

    def model_of(self, node: str) -> ModelSpec:
        """The model that runs a node."""
        return self.models[self.workflow.nodes[node].agent]

    @property
    def compared(self) -> tuple[Channel, ...]:
        """The channels of the edges that are not fixed."""
        return tuple(channel for _, edge, channel in self._edges() if not edge.fixed)

    def with_compared(self, change: Callable[[Channel], Channel]) -> Binding:
        """The same with every channel changed but those of fixed edges."""
        channels = tuple(channel if edge.fixed else change(channel) for _, edge, channel in self._edges())
        return replace(self, channels=channels)

    def incoming(self, node: str) -> list[tuple[int, Edge, Channel]]:
        """Edges into a node with their numbers and channels, in the order they are written."""
        return self._by_end[1].get(node, [])

    def outgoing(self, node: str) -> list[tuple[int, Edge, Channel]]:
        """Edges out of a node with their numbers and channels."""
        return self._by_end[0].get(node, [])

    @cached_property
    def _by_end(self) -> tuple[dict[str, list[tuple[int, Edge, Channel]]], dict[str, list[tuple[int, Edge, Channel]]]]:
        """Edges by sender, and by receiver: looking through all of them for each node would grow with the square."""
        by_sender: dict[str, list[tuple[int, Edge, Channel]]] = {}
        by_receiver: dict[str, list[tuple[int, Edge, Channel]]] = {}
        for entry in self._edges():
            by_sender.setdefault(entry[1].sender, []).append(entry)
            by_receiver.setdefault(entry[1].receiver, []).append(entry)
        return by_sender, by_receiver

    def _edges(self) -> list[tuple[int, Edge, Channel]]:
        pairs = zip(self.workflow.edges, self.channels, strict=True)
        return [(number, edge, channel) for number, (edge, channel) in enumerate(pairs)]


def bind(workflow: Workflow) -> Binding:
    """Resolve every model, channel and task name, and check that each channel fits its pair of models.

    Raises:
        WorkflowError: all problems at once, each with file, line and column.
    """
    problems: list[Problem] = []
    models: dict[str, ModelSpec] = {}
    for name, agent in workflow.agents.items():
        try:
            models[name] = resolve_model(agent.model)
        except ModelError as error:
            problems += _placed(workflow, ("agents", name, "model"), error)
    channels: list[Channel] = []
    for number, edge in enumerate(workflow.edges):
        channel = _channel(workflow, number, edge, problems)
        if channel is None:
            continue
        channels.append(channel)
        pair = [models.get(workflow.nodes[name].agent) for name in (edge.sender, edge.receiver)]
        if pair[0] is not None and pair[1] is not None:
            found = channel.check(pair[0], pair[1])
            if not found.fits:
                advice = f"Use the channel '{found.instead}' here." if found.instead else ""
                what = f"the channel '{channel.name}' does not fit {edge.sender} -> {edge.receiver}: {found.reason}"
                problems.append(workflow.problem(("edges", number, "channel"), what, advice))
    if workflow.task is not None:
        try:
            make_task(workflow.task.name, workflow.task.settings)
        except UserError as error:
            problems += _placed(workflow, ("task",), error)
    if problems:
        raise_problems(problems)
    return Binding(workflow, models, tuple(channels))


def _channel(workflow: Workflow, number: int, edge: Edge, problems: list[Problem]) -> Channel | None:
    name = edge.channel.name
    if name not in channel_names():
        problems.append(
            workflow.problem(
                ("edges", number, "channel", "name"), f"unknown channel '{name}'", did_you_mean(name, channel_names())
            )
        )
        return None
    try:
        return make_channel(name, edge.channel.settings)
    except ChannelError as error:
        problems += _placed(workflow, ("edges", number, "channel"), error)
        return None


def _placed(workflow: Workflow, path: KeyPath, error: UserError) -> list[Problem]:
    """An error about the value at `path`, at the places of what is wrong in there."""
    if error.faults:
        return [workflow.problem((*path, *f.path), f.what, f.fix, key=f.is_key) for f in error.faults]
    return [workflow.problem(path, f"{error.what[:1].lower()}{error.what[1:].rstrip('.')}", error.fix or "")]
