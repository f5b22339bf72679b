"""Controls: ways of answering that a channel must beat before anybody may say that content crossed.

Each control turns a workflow (and an item's inputs) into one where something is missing, foreign or blanked. A
control that can't be made for a workflow or a channel says why, and the comparison goes on without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentflow.channels.negotiation import AUTO
from agentflow.channels.registry import make_channel
from agentflow.channels.retrieval import RetrievalChannel, RetrievalSettings
from agentflow.errors import UserError
from agentflow.evaluation.rows import Arm, Row
from agentflow.evaluation.standins import Zeroed
from agentflow.models.spec import resolve_model
from agentflow.runtime.binding import Binding, bind
from agentflow.tools import Toolbox
from agentflow.workflow.frames import address
from agentflow.workflow.graph import ancestors, build_graph
from agentflow.workflow.meaning import needed
from agentflow.workflow.parts import ChannelSpec, templates_of
from agentflow.workflow.schema import Workflow

NO_MESSAGE, SENDER_ALONE, MISMATCHED, ZERO = "no message", "sender alone", "mismatched", "zero"
SELF = "self"
EQUAL_BYTES, EQUAL_POSITIONS, EQUAL_SECONDS = "equal bytes", "equal positions", "equal seconds"
CONTROLS = {
    NO_MESSAGE: "the receiver answers without any message",
    SENDER_ALONE: "the sender answers itself, having read its own text",
    MISMATCHED: "the receiver gets the message of another item; over an adapter, its own item's text with that cache",
    ZERO: "the payload arrives with every key and value zero",
    SELF: "the receiver's own model takes the sender's place, with an adapter that was trained for that",
    EQUAL_BYTES: "text, cut to the bytes that the channel's payload had",
    EQUAL_POSITIONS: "the best sentences as text, in as many positions as the channel kept",
    EQUAL_SECONDS: "the best sentences as text, as many as can be read in the channel's seconds to the first token",
}


class UnfinishedError(UserError):
    """What a control is to be equal to has failed on this item; it may do better another time."""


@dataclass(frozen=True, eq=False)
class Variation:
    """What to run for one arm on one item.

    Attributes:
        foreign: of which inputs the senders' caches take the place of these inputs' ones; None for none.
    """

    binding: Binding
    inputs: dict[str, Any]
    foreign: dict[str, Any] | None = None


def arms_of(channels: Sequence[ChannelSpec], controls: Sequence[str], bindings: Mapping[str, Binding]) -> list[Arm]:
    """Channels first, then the controls that make sense beside them.

    Args:
        controls: names, each for every channel that it applies to; `mismatched(cache)` is for that channel alone.
    """
    named = [(label(spec.name, spec.settings), spec) for spec in channels]
    arms = [Arm(name, "channel", spec.name, dict(spec.settings)) for name, spec in named]
    for control in controls:
        if control in (NO_MESSAGE, SENDER_ALONE):
            arms.append(Arm(control, "control", control=control))
            continue
        kind, _, about = control.partition("(")
        arms += [
            Arm(f"{kind}({name})", "control", spec.name, dict(spec.settings), control=kind)
            for name, spec in named
            if about in ("", f"{name})") and _applies(kind, bindings[name])
        ]
    return arms


def label(name: str, settings: Mapping[str, Any]) -> str:
    """A channel with its settings, as people write it: `cache`, `cache[bits=4]`."""
    inner = ",".join(f"{k}={v}" for k, v in settings.items())
    return f"{name}[{inner}]" if inner else name


def _applies(control: str, binding: Binding) -> bool:
    channels = binding.compared
    if control == ZERO:
        return any(c.needs_cache and not c.sends_text for c in channels)
    if control == SELF:
        return any(c.trains for c in channels)
    if control == EQUAL_BYTES:
        return any(c.compresses for c in channels)
    if control == EQUAL_POSITIONS:
        return any(c.compresses and c.name != RetrievalChannel.name for c in channels)
    if control == EQUAL_SECONDS:
        return all(c.name not in ("text", RetrievalChannel.name) for c in channels)
    return True


def vary(
    arm: Arm,
    workflow: Workflow,
    inputs: dict[str, Any],
    foreign: dict[str, Any],
    private: Sequence[str],
    row: Row | None,
    text: Row | None = None,
    tools: Toolbox | None = None,
) -> Variation:
    """What an arm runs on an item.

    Args:
        foreign: the inputs of another item.
        private: names of the inputs that only the sender sees.
        row: the same item over the channel that the control is about, where it ran already.
        text: the same item over text.
        tools: which there are.
    """
    over = workflow.with_channel({"name": arm.channel, **arm.settings}) if arm.channel else workflow
    if arm.control == SELF:
        return Variation(bind(with_itself(workflow, arm), tools), inputs)
    if arm.control in (NO_MESSAGE, SENDER_ALONE):
        alone = without_message if arm.control == NO_MESSAGE else sender_alone
        return Variation(bind(alone(workflow), tools), inputs)
    if arm.control == MISMATCHED:
        binding, theirs = bind(over, tools), {**inputs, **{name: foreign[name] for name in private if name in inputs}}
        reads_itself = all(channel.trains for channel in binding.compared)  # so the words must stay the right ones
        return Variation(binding, inputs, theirs) if reads_itself else Variation(binding, theirs)
    if arm.control == EQUAL_BYTES:
        done = _finished(arm, row)
        most = done.bytes // done.messages
        return Variation(bind(workflow.with_channel({"name": "text", "max_bytes": most}), tools), inputs)
    if arm.control in (EQUAL_POSITIONS, EQUAL_SECONDS):
        binding = bind(workflow.with_channel("text"), tools)
        room = RetrievalChannel(RetrievalSettings(limit="max_tokens", max_tokens=_room(arm, row, text)))
        return Variation(binding.with_compared(lambda _: room), inputs)
    binding = bind(over, tools)
    if arm.control == ZERO:
        binding = binding.with_compared(Zeroed)
    return Variation(binding, inputs)


def _room(arm: Arm, row: Row | None, text: Row | None) -> int:
    """How many positions of text each message may take.

    Raises:
        UserError: what it is measured by did not run.
    """
    done = _finished(arm, row)
    if arm.control == EQUAL_POSITIONS:
        return done.message_positions // done.messages
    if text is None or text.error or not text.first_token_seconds:
        raise UserError("text did not run on this item, so its speed is not known")
    read = text.prefilled / text.first_token_seconds * done.first_token_seconds
    own = done.positions - done.message_positions
    return max(0, int((read - own) / done.messages))


def _finished(arm: Arm, row: Row | None) -> Row:
    """The row that a control is to be equal to. Raises `UnfinishedError` where there is none."""
    if row is None or row.error or not row.messages:
        raise UnfinishedError(f"{arm.channel} did not finish this item, so there is nothing to be equal to")
    return row


def answer_node(workflow: Workflow) -> str:
    """The node whose answers are scored."""
    if workflow.task is None or workflow.task.answer is None:
        raise UserError(
            f"The workflow '{workflow.name}' does not say which node's answer counts.",
            fix="Add `task: {name: ..., answer: NODE}` to it.",
        )
    return workflow.task.answer


def without_message(workflow: Workflow) -> Workflow:
    """The receiver on its own: no message whose channel is compared, and no node that only those came from.

    Raises:
        UserError: what is left quotes what is gone, so it can't stand alone.
    """
    node = answer_node(workflow)
    edges = tuple(edge for edge in workflow.edges if edge.fixed)
    alone = workflow.model_copy(update={"edges": edges})
    kept = {node} | ancestors(build_graph(alone), node)
    _refuse_quotes(workflow, kept, NO_MESSAGE)
    return workflow.model_copy(
        update={
            "nodes": {name: step for name, step in workflow.nodes.items() if name in kept},
            "edges": tuple(edge for edge in edges if edge.receiver in kept),
            "outputs": {},
        }
    )


def sender_alone(workflow: Workflow) -> Workflow:
    """The sender goes on and answers itself: the same prompt, on its own conversation.

    Raises:
        UserError: the node that answers has no sender, or several.
    """
    node = answer_node(workflow)
    _refuse_tool(workflow, node)
    senders = {e.sender for e in workflow.edges if e.receiver == node}
    if len(senders) != 1:
        raise UserError(f"'{node}' has {len(senders)} senders, so none of them is the sender alone.")
    sender = senders.pop()
    _refuse_tool(workflow, sender)
    nodes = dict(workflow.nodes)
    for each in workflow.members(address(node)):  # in all rounds of a loop
        nodes[each] = nodes[each].model_copy(update={"agent": workflow.agent_node(sender).agent})
    return workflow.with_channel("text").model_copy(update={"nodes": nodes})


def _refuse_tool(workflow: Workflow, node: str) -> None:
    if workflow.is_tool(node):
        raise UserError(f"'{node}' is a tool, and what it gives is nobody's answer.")


def with_itself(workflow: Workflow, arm: Arm) -> Workflow:
    """Every sender over the channel runs on its receiver's model; the adapter is one of that model with itself.

    Raises:
        UserError: there is none.
    """
    if arm.channel == AUTO:
        raise UserError("it may be another channel on every edge; compare the trained channel by its name")
    settings = {name: value for name, value in arm.settings.items() if name != "bundle"}
    over = workflow.with_channel({"name": arm.channel, **settings})
    nodes, agents = dict(over.nodes), dict(over.agents)
    for edge in over.edges:
        if not (edge.fixed or over.is_tool(edge.sender) or over.is_tool(edge.receiver)):
            sender, model = over.agent_node(edge.sender), agents[over.agent_node(edge.receiver).agent].model
            fits = make_channel(arm.channel, settings).between(resolve_model(model), resolve_model(model))
            if not fits.fits:
                raise UserError(f"the receiver can't be fused with itself: {fits.reason}")
            name = f"{address(edge.sender)} on its receiver's model"
            if name not in agents:  # else that of another round of a loop has been here
                agents[name] = agents[sender.agent].model_copy(update={"model": model})
                for each in over.members(address(edge.sender)):
                    nodes[each] = nodes[each].model_copy(update={"agent": name})
    return over.model_copy(update={"nodes": nodes, "agents": agents})


def _refuse_quotes(workflow: Workflow, kept: Collection[str], control: str) -> None:
    gone = set(workflow.nodes) - set(kept)
    for name in kept:
        for template in templates_of(workflow.nodes[name]):
            named = needed(workflow.layout, name, template)
            if quoted := sorted(gone if named is None else gone & named):
                raise UserError(f"'{name}' quotes '{quoted[0]}', so there is no control '{control}'.")
