"""What `channel: auto` becomes on each edge of a workflow: the best that fits its pair, and what else meets there.

A receiver stands exactly on one cache. A second one would have to be joined with it, which is lossy, so of the edges on
`auto` into a node one at most brings a cache: the first that is written, where no other edge brings one already. A
sender that runs once for each item of a list has a message for each, and sends text.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentflow.channels.base import Channel
from agentflow.channels.negotiation import AUTO, candidates, negotiate
from agentflow.channels.text import TextChannel
from agentflow.errors import ChannelError, UserError
from agentflow.models.spec import ModelSpec
from agentflow.workflow.location import KeyPath
from agentflow.workflow.parts import ChannelSpec, Edge
from agentflow.workflow.problems import Problem
from agentflow.workflow.schema import Workflow


@dataclass(frozen=True)
class Settled:
    """What `auto` has become on one edge, and why."""

    sender: str
    receiver: str
    channel: str
    why: str

    def to_json(self) -> dict[str, str]:
        """The same as a manifest and `validate --json` have it."""
        return {"from": self.sender, "to": self.receiver, "channel": self.channel, "why": self.why}


@dataclass(frozen=True, eq=False)
class Negotiation:
    """Settles the edges on `auto`.

    Attributes:
        models: of the agents, where they are known.
        channels: of the other edges by their numbers; those that are settled are added.
    """

    workflow: Workflow
    models: dict[str, ModelSpec]
    channels: dict[int, Channel]

    def settle(self, problems: list[Problem]) -> dict[int, str]:
        """Choose a channel for every edge on `auto`; return why, by the edge's number."""
        edges, whys = self.workflow.edges, dict[int, str]()
        stands_on = {edges[n].receiver: edges[n].sender for n, made in self.channels.items() if not made.sends_text}
        for number, edge in enumerate(edges):
            if edge.channel.name != AUTO:
                continue
            try:
                tried = candidates(edge.channel.settings)
                choice = negotiate(tried, *self._ends(edge), self._text_only(edge, stands_on))
            except ChannelError as error:
                problems += placed(self.workflow, ("edges", number, "channel"), error)
                continue
            if not choice.channel.sends_text:
                stands_on[edge.receiver] = edge.sender
            self.channels[number] = as_sent(self.workflow, edge, choice.channel)
            whys[number] = choice.why
        return whys

    def _ends(self, edge: Edge) -> tuple[ModelSpec | None, ModelSpec | None]:
        sender, receiver = (
            None if self.workflow.is_tool(name) else self.models.get(self.workflow.agent_node(name).agent)
            for name in (edge.sender, edge.receiver)
        )
        return sender, receiver

    def _text_only(self, edge: Edge, stands_on: dict[str, str]) -> str:
        """Why a cache can't be handed over on an edge, or should not be; "" where it can."""
        for name in (edge.sender, edge.receiver):
            if self.workflow.is_tool(name):
                return f"'{name}' is a tool, which has no cache"
        if self.workflow.nodes[edge.sender].map is not None:
            return f"'{edge.sender}' runs once for each item, and joining its caches is lossy"
        other = stands_on.get(edge.receiver)
        if other is not None:
            return f"'{edge.receiver}' stands on the cache of '{other}', and joining a second one is lossy"
        return ""


def as_sent(workflow: Workflow, edge: Edge, made: Channel) -> Channel:
    """The channel as an edge uses it: a tool has no conversation, so its text is its answer."""
    if isinstance(made, TextChannel) and workflow.is_tool(edge.sender):
        return TextChannel(made.settings.model_copy(update={"scope": "answer"}))
    return made


def spec_of(channel: Channel) -> ChannelSpec:
    """A channel as a file would name it."""
    return ChannelSpec(name=channel.name, settings=channel.settings.model_dump(mode="json", exclude_unset=True))


def placed(workflow: Workflow, path: KeyPath, error: UserError) -> list[Problem]:
    """An error about the value at `path`, at the places of what is wrong in there."""
    if error.faults:
        return [workflow.problem((*path, *f.path), f.what, f.fix, key=f.is_key) for f in error.faults]
    return [workflow.problem(path, f"{error.what[:1].lower()}{error.what[1:].rstrip('.')}", error.fix or "")]
