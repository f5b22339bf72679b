"""Variant `slots`: the sender's cache in a fixed number of positions, wherever its receiver stands.

Every slot is a weighted mean of the sender's positions, the same positions in all layers, and is then mapped like one
(see `lcf_mapped`). At first a slot looks at its own stretch of the text; what it looks for in it, and how far, is
trained. Several slots keep what one summary vector can't: names and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from agentflow.adapters.base import Ropes
from agentflow.adapters.lcf import state_widths
from agentflow.adapters.lcf_mapped import MappedArguments, MappedFront
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry


class SlotsArguments(MappedArguments):
    """How many slots, and what they are computed from."""

    slots: int = Field(default=32, ge=1, le=4096, description="positions of a message")
    width: int = Field(default=32, ge=1, le=4096, description="of what a slot compares positions by")


class Pooling(nn.Module):
    """The weights of every slot over the sender's positions.

    Args:
        widths: of the states that positions are compared by, layer by layer.
    """

    def __init__(self, widths: Sequence[int], slots: int, width: int) -> None:
        super().__init__()
        self.looks = nn.ModuleList(nn.Linear(n, width, bias=False) for n in widths)
        self.norm = nn.RMSNorm(width)
        self.queries = nn.Parameter(torch.zeros(slots, width))
        self.reach = nn.Parameter(torch.zeros(slots))
        """Logarithm of how far a slot looks, in its own stretches of the text."""

    def forward(self, rows: Sequence[Tensor]) -> Tensor:
        """`(slots, T)`, each row adding up to 1, for the states `(T, width)` of each layer."""
        seen = self.norm(sum((look(x) for look, x in zip(self.looks, rows, strict=True)), torch.zeros(())))
        wanted = self.queries @ seen.T
        slots, length = wanted.shape
        place = (torch.arange(length, device=wanted.device) + 0.5) / length * slots
        own = torch.arange(slots, device=wanted.device) + 0.5
        distance = (place[None] - own[:, None]) / self.reach.exp()[:, None]
        weights: Tensor = (wanted - 2 * distance.square()).softmax(dim=-1)
        return weights


class LCFSlots(MappedFront):
    """A few positions of the receiver's for all of the sender's."""

    name = "lcf_slots"
    Arguments = SlotsArguments
    arguments: SlotsArguments

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: SlotsArguments) -> None:
        super().__init__(sender, receiver, arguments)
        widths = state_widths(sender)
        self.pooling = Pooling([widths[n] for n in self.maps.used], arguments.slots, arguments.width)

    def encode(self, cache: KVCache, ropes: Ropes) -> dict[str, Tensor]:
        """`layers.N`, `(slots, width)`; a text of fewer positions than slots is sent position by position."""
        rows = {n: r.to(self.gates.gate) for n, r in self.looked_at(cache, ropes).items()}
        if len(next(iter(rows.values()))) > self.arguments.slots:
            weights = self.pooling(list(rows.values()))
            rows = {n: weights @ r for n, r in rows.items()}
        return {f"layers.{n}": r for n, r in rows.items()}
