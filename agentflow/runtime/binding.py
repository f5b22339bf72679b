"""A workflow joined to the models and channels it names, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from blake3 import blake3

from agentflow.channels.base import Channel, Compatibility
from agentflow.channels.negotiation import AUTO, fitting
from agentflow.channels.registry import channel_names, make_channel
from agentflow.channels.text import TextChannel
from agentflow.errors import ChannelError, ModelError, UserError, did_you_mean
from agentflow.models.spec import ModelSpec, resolve_model
from agentflow.runtime.arguments import bound_tools
from agentflow.runtime.memory import memory_problems
from agentflow.runtime.negotiating import Negotiation, Settled, as_sent, placed, spec_of
from agentflow.tasks.registry import make_task
from agentflow.tools import Toolbox
from agentflow.tools.base import Tool
from agentflow.workflow.frames import address
from agentflow.workflow.graph import ancestors, build_graph, topological_order
from agentflow.workflow.parts import Edge, Node
from agentflow.workflow.problems import Problem, raise_problems
from agentflow.workflow.schema import Workflow

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, eq=False)
class Binding:
    """A workflow that can run.

    Attributes:
        models: the model of each agent.
        channels: the channel of each edge, in the order of `workflow.edges`.
        tools: the tool of each node that has one.
        negotiated: by the number of an edge that was on `auto`, why its channel was chosen. The workflow's own edges
            name the channel that it has become.
    """

    workflow: Workflow
    models: dict[str, ModelSpec]
    channels: tuple[Channel, ...]
    tools: dict[str, Tool] = field(default_factory=dict)
    negotiated: dict[int, str] = field(default_factory=dict)

    def model_of(self, node: str) -> ModelSpec:
        """The model that runs an agent's node."""
        return self.models[self.workflow.agent_node(node).agent]

    def is_called(self, node: str) -> bool:
        """Whether a node's work is done elsewhere: by a tool, or by a remote model; no engine is needed for it."""
        return node in self.tools or self.model_of(node).remote is not None

    @property
    def settled(self) -> list[Settled]:
        """What `auto` has become."""
        whys = ((self.workflow.edges[number], why) for number, why in self.negotiated.items())
        return [Settled(edge.sender, edge.receiver, edge.channel.name, why) for edge, why in whys]

    @property
    def compared(self) -> tuple[Channel, ...]:
        """The channels of the edges that are not fixed."""
        return tuple(channel for _, edge, channel in self._edges() if not edge.fixed)

    @property
    def mark(self) -> str:
        """A digest of what the channels depend on besides settings and senders; "" for nothing."""
        ends = ((edge.sender, edge.receiver, channel) for _, edge, channel in self._edges())
        marks = [
            channel.mark(self.model_of(sender), self.model_of(receiver))
            for sender, receiver, channel in ends
            if sender not in self.tools and receiver not in self.tools
        ]
        return blake3("\n".join(marks).encode()).hexdigest() if any(marks) else ""

    def with_compared(self, change: Callable[[Channel], Channel]) -> Binding:
        """The same with every channel changed but those of fixed edges."""
        channels = tuple(channel if edge.fixed else change(channel) for _, edge, channel in self._edges())
        return replace(self, channels=channels)

    def incoming(self, node: str) -> list[tuple[int, Edge, Channel]]:
        """Edges into a node with their numbers and channels, in the order they are written."""
        return self._by_end[1].get(node, [])

    def sent(self, node: str) -> list[tuple[int, Edge, Channel]]:
        """Edges out of a node with their numbers and channels."""
        return self._by_end[0].get(node, [])

    def outgoing(self, node: str) -> list[tuple[int, Edge, Channel]]:
        """Edges that a node's message may travel: those out of it, and, if its round is the last one, of its loops."""
        return [edge for name in (node, *self.workflow.layout.exits(node)) for edge in self.sent(name)]

    @cached_property
    def _by_end(self) -> tuple[dict[str, list[tuple[int, Edge, Channel]]], dict[str, list[tuple[int, Edge, Channel]]]]:
        """Edges by sender, and by receiver: looking through all of them for each node would grow with the square."""
        by_sender: dict[str, list[tuple[int, Edge, Channel]]] = {}
        by_receiver: dict[str, list[tuple[int, Edge, Channel]]] = {}
        for entry in self._edges():
            by_sender.setdefault(entry[1].sender, []).append(entry)
            by_receiver.setdefault(entry[1].receiver, []).append(entry)
        return by_sender, by_receiver

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The workflow's nodes, and which waits for which."""
        return build_graph(self.workflow)

    @cached_property
    def order(self) -> list[str]:
        """The nodes in topological order."""
        return topological_order(self.graph)

    def until(self, name: str | None) -> list[str]:
        """The nodes to run, in topological order: all, or those of a name and whatever they depend on.

        Raises:
            UserError: nothing has this name.
        """
        if name is None:
            return self.order
        last = self.workflow.members(name)
        if not last:
            fix = did_you_mean(name, {address(node) for node in self.workflow.nodes})
            raise UserError(f"There is no node '{name}' to run until.", fix=fix)
        wanted = {one for node in last for one in (node, *ancestors(self.graph, node))}
        return [node for node in self.order if node in wanted]

    def _edges(self) -> list[tuple[int, Edge, Channel]]:
        pairs = zip(self.workflow.edges, self.channels, strict=True)
        return [(number, edge, channel) for number, (edge, channel) in enumerate(pairs)]


def bind(workflow: Workflow, tools: Toolbox | None = None) -> Binding:
    """Resolve every model, channel, tool and task name, and check that each channel fits its pair of models.

    Args:
        tools: which there are; by default those that are installed.

    Raises:
        WorkflowError: all problems at once, each with file, line and column.
    """
    problems: list[Problem] = []
    models: dict[str, ModelSpec] = {}
    for name, agent in workflow.agents.items():
        try:
            models[name] = resolve_model(agent.model)
        except ModelError as error:
            problems += placed(workflow, ("agents", name, "model"), error)
    problems += _beyond_remote(workflow, models)
    found = bound_tools(workflow, tools if tools is not None else Toolbox(), problems)
    channels = dict[int, Channel]()
    for number, edge in enumerate(workflow.edges):
        channel = _channel(workflow, number, edge, problems) if edge.channel.name != AUTO else None
        if channel is None:
            continue
        channels[number] = channel
        unfit = _misfit(workflow, models, edge, channel)
        if unfit is not None:
            ends = f"{address(edge.sender)} -> {address(edge.receiver)}"
            what = f"the channel '{channel.name}' does not fit {ends}: {unfit.reason}"
            problems.append(
                workflow.problem(("edges", number, "channel"), what, _advice(workflow, models, edge, unfit))
            )
    whys = Negotiation(workflow, models, channels).settle(problems)
    problems += memory_problems(workflow, models)
    if workflow.task is not None:
        try:
            make_task(workflow.task.name, workflow.task.settings)
        except UserError as error:
            problems += placed(workflow, ("task",), error)
    if problems:
        raise_problems(problems)
    edges = tuple(
        edge.model_copy(update={"channel": spec_of(channels[n])}) if n in whys else edge
        for n, edge in enumerate(workflow.edges)
    )
    settled = workflow.model_copy(update={"edges": edges}) if whys else workflow
    return Binding(settled, models, tuple(channels[n] for n in range(len(edges))), found, whys)


def _beyond_remote(workflow: Workflow, models: dict[str, ModelSpec]) -> Iterator[Problem]:
    """What nodes ask of a remote model that it can't do."""
    for name, node in workflow.nodes.items():
        spec = models.get(node.agent) if isinstance(node, Node) else None
        if not isinstance(node, Node) or spec is None or spec.remote is None:
            continue
        told = f"'{spec.model}' is remote"
        if node.choose is not None:
            fix = "Use `output:` with a schema that allows these answers (`enum`) alone."
            what = f"{told}, and does not tell how likely each choice is"
            yield workflow.problem(("nodes", name, "choose"), what, fix)
        if workflow.effective(name).max_new_tokens == 0:
            owners = (node, ("nodes", name)), (workflow.agents[node.agent], ("agents", node.agent))
            path = next((path for part, path in owners if part.max_new_tokens == 0), ("defaults",))
            fix = "Let it say something, or give what it would have read to its receivers."
            yield workflow.problem((*path, "max_new_tokens"), f"{told}: it keeps no cache, so it has to speak", fix)


def _misfit(workflow: Workflow, models: dict[str, ModelSpec], edge: Edge, channel: Channel) -> Compatibility | None:
    """Why a channel can't carry an edge's messages; None where it can, or where that can't be told yet."""
    for name, why in ((edge.sender, "has a text to give and no cache"), (edge.receiver, "takes arguments alone")):
        if workflow.is_tool(name):
            fits = channel.name == TextChannel.name
            return None if fits else Compatibility(False, f"'{address(name)}' is a tool and {why}", TextChannel.name)
    ends = [models.get(workflow.agent_node(name).agent) for name in (edge.sender, edge.receiver)]
    if ends[0] is None or ends[1] is None:
        return None
    found = channel.between(ends[0], ends[1])
    return None if found.fits else found


def _advice(workflow: Workflow, models: dict[str, ModelSpec], edge: Edge, unfit: Compatibility) -> str:
    """What to use in place of a channel that does not fit."""
    if workflow.is_tool(edge.sender) or workflow.is_tool(edge.receiver):
        return f"Use the channel '{unfit.instead}' here."
    ends = [models[workflow.agent_node(name).agent] for name in (edge.sender, edge.receiver)]
    fit = fitting(ends[0], ends[1])
    return f"These fit here, the best first: {', '.join(fit)}." if fit else ""


def _channel(workflow: Workflow, number: int, edge: Edge, problems: list[Problem]) -> Channel | None:
    name = edge.channel.name
    known = [*channel_names(), AUTO]
    if name not in known:
        path = ("edges", number, "channel", "name")
        problems.append(workflow.problem(path, f"unknown channel '{name}'", did_you_mean(name, known)))
        return None
    try:
        made = make_channel(name, edge.channel.settings)
    except ChannelError as error:
        problems += placed(workflow, ("edges", number, "channel"), error)
        return None
    return as_sent(workflow, edge, made)
