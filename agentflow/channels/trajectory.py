"""A sender's trajectory as the receiver's model sees it, whoever the sender is."""

from __future__ import annotations

from collections.abc import Sequence

from agentflow.channels.base import Message
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Turn
from agentflow.models.chat import render
from agentflow.models.engine import Engine


def encode(message: Message, engine: Engine) -> tuple[KVCache, tuple[int, ...], int]:
    """The cache of a message's conversation in the receiver's model, its tokens, and how many were computed for it.

    A sender with the same weights has computed it already. Otherwise the words are run through the receiver's
    model, from where the last trajectory that begins alike ends: a growing trajectory costs only its new end.
    """
    same = message.engine is not None and not message.engine.fingerprint.differences(engine.fingerprint)
    if same and message.cache is not None:
        return message.cache, message.token_ids[: message.cache.next_position], 0
    return read(message.turns, engine)


def read(turns: Sequence[Turn], engine: Engine) -> tuple[KVCache, tuple[int, ...], int]:
    """The cache of a conversation in a model, its tokens, and how many were computed for it."""
    token_ids = tuple(render(engine.tokenizer, turns, reply=False))
    cache, found = engine.prefixes.find(token_ids)
    if found < len(token_ids):
        cache = engine.prefill(token_ids[found:], cache)
        engine.prefixes.add(token_ids, cache)
    assert cache is not None
    return cache, token_ids, len(token_ids) - found
