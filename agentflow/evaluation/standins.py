"""Channels that stand in for another in a control: what travels is blank, or of another item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from agentflow.channels.base import Channel, Context, Message, Task
from agentflow.errors import UserError
from agentflow.evaluation.foreign import in_place_of
from agentflow.kv.bodies import CacheBody, CodesBody
from agentflow.kv.payload import Payload
from agentflow.models.engine import Engine


class StandIn(Channel):
    """Speaks for a channel; what it sends is changed."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner.settings)
        self.inner = inner
        self.name = inner.name  # type: ignore[misc]  # of the instance, where others have one of the class
        self.needs_cache, self.task_free = inner.needs_cache, inner.task_free  # type: ignore[misc]

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Receive it as the channel does."""
        return self.inner.receive(payload, receiver)


class Zeroed(StandIn):
    """The cache or the codes arrive with every number zero; positions and words stay."""

    def send(self, message: Message, task: Task) -> Payload:
        """Send what the channel would, blanked."""
        payload = self.inner.send(message, task).dequantized()
        body = payload.body
        if isinstance(body, CodesBody):
            parts = body.tensors.items()
            blank = {name: torch.zeros_like(t) if t.is_floating_point() else t for name, t in parts}
            return replace(payload, body=replace(body, tensors=blank))
        if not isinstance(body, CacheBody):
            return payload
        return replace(payload, body=replace(body, cache=body.cache.blanked()))


class Mismatched(StandIn):
    """The words are the right ones, and what is encoded beside them is another item's cache.

    Args:
        heard: what the same senders have to say on another item, by their names.
    """

    def __init__(self, inner: Channel, heard: Mapping[str, Message]) -> None:
        super().__init__(inner)
        self.heard = heard

    def send(self, message: Message, task: Task) -> Payload:
        """Send what the channel would for these words with that cache."""
        other = self.heard.get(message.sender)
        if other is None:
            raise UserError(f"'{message.sender}' has no message on the other item, so there is none to mismatch.")
        return self.inner.send(in_place_of(message, other), task)
