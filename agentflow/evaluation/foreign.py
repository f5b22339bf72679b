"""What the senders of a workflow have to say on another item, and its cache under this item's words.

A receiver over a trained adapter reads the sender's conversation itself. Were that exchanged as well, it would fail for
want of the text, and nothing would be said about what the adapter adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentflow.channels.base import Message
from agentflow.kv.cache import KVCache
from agentflow.kv.fanin import fitted
from agentflow.kv.rope import shift
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Generation
from agentflow.runtime.agent import Turnplan, close_turn
from agentflow.runtime.binding import Binding
from agentflow.runtime.memo import Memo
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.scheduler import Unit


def overheard(
    binding: Binding, inputs: Mapping[str, Any], engines: EnginePool, options: RunOptions, memo: Memo
) -> dict[str, Message]:
    """The message of every node whose channel is compared, by the name as which receivers hear it.

    Of a mapped node it is that of the first child, of a node in a loop that of the first round.
    """
    layout = binding.workflow.layout
    senders = {edge.sender for edge in binding.workflow.edges if not edge.fixed}
    found: dict[str, Message] = {}
    first: dict[str, int] = {}

    def listen(unit: Unit, engine: Engine, plan: Turnplan, answer: Generation) -> None:
        speaker, child = layout.local(unit.node), unit.child or 0
        if unit.node in senders and child < first.get(speaker, child + 1):
            first[speaker] = child
            found[speaker] = close_turn(speaker, engine, plan, answer)[1]

    alone = next(iter(senders)) if len(senders) == 1 else None  # then nobody needs to hear it
    run = Orchestrator(binding, engines, options=replace(options, until=alone), memo=memo, probe=listen)
    run.run([("another item", dict(inputs))])
    return found


def in_place_of(message: Message, other: Message) -> Message:
    """A message with another one's cache in the places of its own: as long, and at the same positions.

    A cache that is too short stands behind itself again, its keys turned to where they come to stand.
    """
    if message.cache is None or other.cache is None or other.engine is None:
        return replace(message, cache=None)
    places = message.cache.positions
    places = places[places >= message.head]
    ropes = other.engine.loaded.ropes
    theirs = other.cache.since(other.head)
    theirs = shift(theirs, message.head - other.head, ropes)
    theirs = fitted(theirs, len(places), ropes)
    cache = KVCache(theirs.keys, theirs.values, places, message.cache.next_position)
    return replace(message, cache=cache)
