"""Messages made from what units left behind when a receiver needs them: of tools, and of an earlier process's turns.

Caches are not stored. The sender's turn is planned as it was the first time, and the tokens of its answer are
prefilled behind its prompt instead of being decoded, so the cache is the one that decoding left, up to rounding.
Senders of senders come first, where their messages are needed for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agentflow.channels.base import Message
from agentflow.kv.payload import Turn
from agentflow.models.chat import render
from agentflow.models.engine import Engine
from agentflow.models.pool import Speaker
from agentflow.models.requests import Generation
from agentflow.runtime.agent import Turnplan, close_turn
from agentflow.runtime.binding import Binding
from agentflow.runtime.records import Answer
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState

SpeakerOf = Callable[[str], Speaker]
Plan = Callable[[Unit, ItemState], tuple[Speaker, Turnplan]]


def recall(binding: Binding, plan: Plan, speaker_of: SpeakerOf, state: ItemState, sender: str) -> dict[int, Message]:
    """The messages of a finished node by child, those that are missing made again.

    Args:
        plan: plans a unit's turn once more; asks for the messages of its own senders, which are there by then.
        speaker_of: the model of a node.
    """
    found: dict[int, Message] = {}
    with state.recalling:
        for node in _missing(binding, state, sender):
            found, local = dict(state.messages.get(node, {})), binding.workflow.layout.local(node)
            for child, answer in sorted(state.answers.get(node, {}).items()):
                if child not in found and node in binding.tools:
                    found[child] = _told(local, answer.text)
                elif child not in found and answer.finish == "fallback":
                    found[child] = _stand_in(local, answer.text, speaker_of(node))
                elif child not in found:
                    is_child = binding.workflow.nodes[node].map is not None
                    unit = Unit(state.id, node, child if is_child else None)
                    found[child] = _message(local, plan, state, unit, answer)
            state.messages[node] = found
    state.forget(*state.messages)  # those of senders of senders were needed for a moment
    return found


def complete(state: ItemState, node: str) -> bool:
    """Whether there is a message of every unit of a finished node."""
    return state.answers.get(node, {}).keys() <= state.messages.get(node, {}).keys()


def _missing(binding: Binding, state: ItemState, sender: str) -> list[str]:
    """The sender and those before it whose messages are gone, in an order in which they can be made."""
    order: list[str] = []
    seen: set[str] = set()
    pending = [(sender, False)]  # a stack of our own: a chain may be longer than Python's
    while pending:
        node, is_ready = pending.pop()
        if is_ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            pending.append((node, True))
            senders = (state.source(edge.sender) for _, edge, _ in binding.incoming(node))
            pending += [(name, False) for name in senders if not complete(state, name)]
    return order


def _message(name: str, plan: Plan, state: ItemState, unit: Unit, answer: Answer) -> Message:
    assert answer.finish != "fallback"
    assert answer.finish != "tool"
    speaker, turn = plan(unit, state)
    cache = None
    if turn.request.keep_cache and isinstance(speaker, Engine):
        tokens = answer.request(turn.request)
        asked = replace(turn.request, token_ids=tokens, max_new_tokens=0, cancelled=None, on_token=None)
        cache = speaker.generate([asked])[0].cache
    said = Generation(answer.token_ids, answer.text, answer.finish, 0, 0, 0.0, 0.0, cache)
    return close_turn(name, speaker, turn, said)[1]


def _stand_in(name: str, text: str, speaker: Speaker) -> Message:
    """The message of a node that failed and has a fallback: its conversation may be what failed, so it is left out."""
    told = _told(name, text)
    if not isinstance(speaker, Engine):
        return told
    token_ids = tuple(render(speaker.tokenizer, told.turns, reply=False))
    return replace(told, token_ids=token_ids, cache=speaker.prefill(token_ids), engine=speaker)


def _told(name: str, text: str) -> Message:
    """The message of a node that has nothing but a text to give: a tool's result, a fallback."""
    return Message(name, (Turn("user", f"Message from {name}:\n{text}"),), text)
