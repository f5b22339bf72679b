"""Variant `mapped`: the sender's cache, position by position, as the receiver would have computed it.

After cross-model cache hand-over by ridge regression (arXiv 2608.03893): every layer's keys and values of the receiver
are a linear function of the sender's in the matched layer and its neighbours, with RoPE taken off the keys. The maps
are found in closed form (`adapters.closed_form`). One number a position and head is not pooled away, so names and
numbers cross.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from agentflow.adapters.base import Ropes
from agentflow.adapters.closed_form import Fitted, Moments, reduced
from agentflow.adapters.front import FrontAdapter
from agentflow.adapters.gates import OPEN
from agentflow.adapters.lcf import LayeredArguments, part, state_widths, states
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.models.alignment import align_layers


class MappedArguments(LayeredArguments):
    """How the receiver's layers are computed from the sender's."""

    neighbours: int = Field(default=0, ge=0, le=8, description="further layers looked at on either side")
    rank: int | None = Field(
        default=None, ge=1, le=16384, description="of each map; left out: whatever it is. A smaller bundle"
    )


class Maps(nn.Module):
    """One affine map for each of the receiver's layers, from some of the sender's layers.

    Attributes:
        windows: for each of the receiver's layers the sender's layers that it is computed from.
    """

    def __init__(self, sender: Geometry, receiver: Geometry, a: MappedArguments) -> None:
        super().__init__()
        most = len(sender.layers) - 1
        matched = align_layers(len(sender.layers), len(receiver.layers), a.layers)
        self.windows = [tuple(range(max(0, m - a.neighbours), min(most, m + a.neighbours) + 1)) for m in matched]
        theirs, own = state_widths(sender), state_widths(receiver)
        self.inputs = [sum(theirs[layer] for layer in window) for window in self.windows]
        self.outputs = own
        rows = zip(self.inputs, own, strict=True)
        self.maps = nn.ModuleList(_affine(n, m, a.rank) for n, m in rows)

    @property
    def used(self) -> list[int]:
        """The sender's layers that some map looks at."""
        return sorted({layer for window in self.windows for layer in window})

    def moments(self) -> list[Moments]:
        """Empty sums for every map."""
        return [Moments(n, m) for n, m in zip(self.inputs, self.outputs, strict=True)]

    def take(self, moments: Sequence[Moments], theirs: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        """Take in a text's states at the same tokens, per layer of each model."""
        for one, window, outputs in zip(moments, self.windows, own, strict=True):
            one.add(torch.cat([theirs[n] for n in window], dim=-1), outputs)

    @torch.no_grad()
    def settle(self, moments: Sequence[Moments], ridge: float) -> None:
        """Set every map to the best one for what was taken in."""
        for one, seen in zip(self.maps, moments, strict=True):
            weights, bias = seen.solve(ridge)
            last = one
            if isinstance(one, nn.Sequential):
                first, last = cast(list[nn.Linear], list(one))
                up, down = reduced(weights, seen, len(first.weight))
                first.weight.copy_(down)
                # What is left out of the outputs is their mean's, not nothing's.
                mean = seen.sums / seen.count
                bias = mean[seen.inputs :] - up @ (down @ mean[: seen.inputs])
                weights = up
            cast(nn.Linear, last).weight.copy_(weights)
            cast(nn.Linear, last).bias.copy_(bias)

    def forward(self, theirs: Mapping[int, Tensor]) -> list[Tensor]:
        """The receiver's states `(n, width)` of each layer for the sender's, by layer."""
        return [
            one(torch.cat([theirs[n] for n in window], dim=-1))
            for one, window in zip(self.maps, self.windows, strict=True)
        ]


def _affine(inputs: int, outputs: int, rank: int | None) -> nn.Module:
    if rank is None or rank >= min(inputs, outputs):
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs))


class MappedFront(FrontAdapter, Fitted):
    """A message of the receiver's positions, each mapped from a state of the sender's: `layers.N`, `(n, width)`."""

    Arguments = MappedArguments

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: MappedArguments) -> None:
        super().__init__(sender, receiver, arguments)
        self.maps = Maps(sender, receiver, arguments)

    def moments(self, stage: int) -> list[Moments]:
        """Empty sums for every map."""
        del stage
        return self.maps.moments()

    def take(self, stage: int, moments: Sequence[Moments], theirs: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        """Take in a text."""
        del stage
        self.maps.take(moments, theirs, own)

    @torch.no_grad()
    def settle(self, stage: int, moments: Sequence[Moments], ridge: float) -> None:
        """Set every map, and open the gates."""
        del stage
        self.maps.settle(moments, ridge)
        self.gates.gate.fill_(OPEN)

    def looked_at(self, cache: KVCache, ropes: Ropes) -> dict[int, Tensor]:
        """The sender's states `(T, width)` by layer, but for the first position's.

        That one draws attention whatever it says, and looks like no other; the receiver has its own.
        """
        self.require_sender(cache)
        first = int(len(cache) > 0 and int(cache.positions[0]) == 0)
        rows = states(cache, ropes)
        return {n: rows[n][first:] for n in self.maps.used}

    def rows(self, codes: Mapping[str, Tensor]) -> list[Tensor]:
        """Map every layer."""
        widths, length = state_widths(self.sender), None
        theirs: dict[int, Tensor] = {}
        for n in self.maps.used:
            found = part(codes, f"layers.{n}", (length, widths[n]))
            length = found.shape[0]
            theirs[n] = found.to(self.gates.gate)
        mapped: list[Tensor] = self.maps(theirs)
        return mapped


class LCFMapped(MappedFront):
    """A cache of the receiver's, mapped from the sender's."""

    name = "lcf_mapped"
    arguments: MappedArguments

    def encode(self, cache: KVCache, ropes: Ropes) -> dict[str, Tensor]:
        """`layers.N`, `(T - 1, width)`."""
        return {f"layers.{n}": rows for n, rows in self.looked_at(cache, ropes).items()}
