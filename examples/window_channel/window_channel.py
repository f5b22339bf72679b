"""Channel `window`: the first and the last positions of the sender's cache, and nothing between.

A channel of its own in one file. The idea is StreamingLLM's (arXiv 2309.17453): the first positions are attention
sinks that every model needs, the last ones are what was said most recently. Cheap, and blind to what matters.
"""

from __future__ import annotations

import torch
from pydantic import Field

from agentflow.channels.base import FITS, Channel, ChannelSettings, Compatibility, Context, Message, Task
from agentflow.errors import ChannelError, PayloadError
from agentflow.kv.payload import CacheBody, Header, Payload
from agentflow.models.engine import Engine
from agentflow.models.spec import ModelSpec


class WindowSettings(ChannelSettings):
    """Settings of `window`, as an edge gives them in YAML. An unknown one is an error at validate time."""

    sinks: int = Field(default=4, ge=0, description="positions kept at the start")
    recent: int = Field(default=64, ge=1, description="positions kept at the end")


class WindowChannel(Channel):
    """Attention sinks and the most recent positions of the sender's cache."""

    name = "window"
    Settings = WindowSettings
    settings: WindowSettings
    needs_cache = True  # the sender keeps its cache for us
    task_free = True  # the payload is the same for every receiver, so it is made once

    def check(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """Asked by `agentflow validate`, before any weights are there."""
        if sender.identity == receiver.identity:
            return FITS
        return Compatibility(False, "it needs the same weights at both ends", instead="text")

    def send(self, message: Message, task: Task) -> Payload:
        """Turn the sender's trajectory into what travels."""
        if message.cache is None or message.engine is None:
            raise ChannelError(f"'{message.sender}' kept no cache, so there is none to hand over.")
        cache = message.cache
        entries = torch.arange(len(cache))
        kept = cache.select((entries < self.settings.sinks) | (entries >= len(cache) - self.settings.recent))
        dropped = len(cache) - len(kept)
        losses = (*message.losses, *([f"{dropped} positions before the window dropped"] if dropped else []))
        header = Header(
            self.name, message.sender, message.engine.fingerprint, cache.next_position, len(kept), losses=losses
        )
        return Payload(header, CacheBody(kept, message.token_ids, message.turns, message.head))

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Turn what travelled into what the receiver stands on."""
        body = payload.body
        if not isinstance(body, CacheBody):
            raise PayloadError(f"The payload from '{payload.header.sender}' holds no cache.")
        payload.require(receiver.fingerprint)  # refuses a cache of another model by name of what differs
        cache = body.cache.to(receiver.loaded.device, receiver.loaded.dtype)
        return Context(
            turns=body.turns, cache=cache, token_ids=body.token_ids, head=body.head, losses=payload.header.losses
        )
