"""Channel `cache`: the sender's whole KV cache becomes the receiver's prefix. Lossless, for equal weights.

The receiver computes its own turn and nothing else. Its token sequence is the one that the text channel would have
given, so its answer is the same; what is saved is the prefill.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentflow.channels.base import (
    FITS,
    Channel,
    ChannelSettings,
    Compatibility,
    Context,
    Joining,
    Message,
    Task,
)
from agentflow.errors import ChannelError, PayloadError
from agentflow.kv.payload import CacheBody, Header, Payload, TextBody
from agentflow.models.engine import Engine
from agentflow.models.spec import ModelSpec


class CacheSettings(ChannelSettings):
    """Settings of `cache`."""

    bits: Literal[4, 8] | None = Field(
        default=None, description="quantise keys per channel and values per token to so many bits; lossy"
    )
    drop_sinks: int = Field(
        default=4, ge=0, description="fan-in: leading positions left out of every cache but the first"
    )
    recompute: float = Field(
        default=0.0, ge=0, le=1, description="fan-in: share of positions computed anew, those that deviate most"
    )


class CacheChannel(Channel):
    """Keys and values as they are."""

    name = "cache"
    Settings = CacheSettings
    settings: CacheSettings
    needs_cache = True
    rank = 10

    def check(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """Equal weights, or nothing: another model can't read these keys."""
        if sender.identity == receiver.identity:
            return FITS
        return Compatibility(
            False, f"it needs the same weights at both ends, and '{sender.model}' is not '{receiver.model}'", "text"
        )

    def send(self, message: Message, task: Task) -> Payload:
        """Hand the cache over by reference; nothing is copied until it leaves the process."""
        del task
        if message.cache is None or message.engine is None:
            raise ChannelError(f"'{message.sender}' kept no cache, so there is none to hand over.")
        cache = message.cache
        header = Header(
            self.name, message.sender, message.engine.fingerprint, cache.next_position, len(cache), message.losses
        )
        payload = Payload(header, CacheBody(cache, message.token_ids, message.turns, message.head))
        return payload.quantized(self.settings.bits) if self.settings.bits else payload

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Refuse a foreign cache by name of what differs; otherwise stand on it."""
        return context_of_cache(payload, receiver, Joining(self.settings.drop_sinks, self.settings.recompute))


def context_of_cache(payload: Payload, receiver: Engine, joining: Joining) -> Context:
    """The context of any payload whose body is a cache of the receiver's own model, in whatever bits."""
    body = payload.dequantized(receiver.loaded.dtype).body
    if not isinstance(body, CacheBody):
        kind = "text" if isinstance(body, TextBody) else "codes"
        raise PayloadError(
            f"The payload from '{payload.header.sender}' holds {kind}, not a cache.",
            fix="Receive it with the channel that sent it.",
        )
    payload.require(receiver.fingerprint)
    cache = body.cache.to(receiver.loaded.device, receiver.loaded.dtype)
    return Context(
        turns=body.turns,
        cache=cache,
        token_ids=body.token_ids,
        head=body.head,
        losses=payload.header.losses,
        joining=joining,
    )
