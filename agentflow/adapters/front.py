"""Messages in positions of their own, before the receiver's conversation: behind the one token that begins any."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from agentflow.adapters.base import Adapter, AdapterArguments, Ropes
from agentflow.adapters.gates import LayerGates
from agentflow.adapters.lcf import parted
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.rope import turn

SHUT = -1e4
"""Added to the attention logits of a layer that shall not see the message; its share is then exactly 0 in float32."""


class FrontAdapter(Adapter):
    """An adapter whose messages are keys and values at further positions.

    A layer's gate lets it see them: as a bias on its attention logits, the logarithm of what is drawn in training.
    With every gate shut there are no such positions at all.
    """

    place = "front"

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: AdapterArguments) -> None:
        super().__init__(sender, receiver, arguments)
        self.gates = LayerGates(len(receiver.layers), 1)

    @abstractmethod
    def rows(self, codes: Mapping[str, Tensor]) -> list[Tensor]:
        """What the receiver shall find: per layer `(n, heads * (key_dim + value_dim))`, keys as before RoPE."""

    def decode(self, codes: Mapping[str, Tensor], cache: KVCache, ropes: Ropes, partners: Tensor) -> KVCache:
        """`cache`, and behind it the message; `cache` itself where no layer would see it."""
        del partners
        if not (self.training or any(one for (one,) in self.gates.open)):
            return cache
        pairs = [parted(rows, shape) for rows, shape in zip(self.rows(codes), self.receiver.layers, strict=True)]
        count = pairs[0][0].shape[1]
        if count == 0:
            return cache
        steps = torch.arange(cache.next_rotary, cache.next_rotary + count)
        keys = turn([k for k, _ in pairs], [steps.to(k.device) for k, _ in pairs], ropes)
        bias = self._bias(count)
        message = KVCache(
            tuple(k.to(own) for k, own in zip(keys, cache.keys, strict=True)),
            tuple(v.to(own) for (_, v), own in zip(pairs, cache.values, strict=True)),
            torch.arange(cache.next_position, cache.next_position + count, device=cache.positions.device),
            cache.next_position + count,
            bias,
        )
        return cache.followed_by(message)

    def _bias(self, count: int) -> tuple[Tensor, ...] | None:
        heads = [layer[0] for layer in self.receiver.layers]
        if self.training:
            logs = self.gates.drawn(self.temperature).clamp_min(1e-6).log()[:, 0]
            return tuple(log.expand(h, count) for log, h in zip(logs, heads, strict=True))
        if all(one for (one,) in self.gates.open):
            return None
        device = self.gates.gate.device
        return tuple(
            torch.full((h, count), 0.0 if one else SHUT, device=device)
            for (one,), h in zip(self.gates.open, heads, strict=True)
        )
