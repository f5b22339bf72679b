"""Variant `aligned` (Latent Cache Flow, arXiv 2605.22863): one text, two readers, one narrow bottleneck a layer.

For each token the keys and values of both models are mapped to a narrow hidden state; its halves become what is added
to the receiver's keys and values, weighted head by head, behind a gate for the layer. What the sender's states are
mapped to is all that travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from pydantic import Field
from torch import Tensor, nn

from agentflow.adapters.base import Adapter, Ropes
from agentflow.adapters.c2c import FeedForward
from agentflow.adapters.gates import LayerGates
from agentflow.adapters.lcf import LayeredArguments, part, state_widths, states, unflat
from agentflow.errors import AdapterError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.models.alignment import LayerRule, align_layers


class BottleneckArguments(LayeredArguments):
    """Size of a bottleneck, and which layers have one."""

    layers: LayerRule | tuple[int, ...] = Field(
        default="terminal", description="the sender's layer for each of the receiver's: a rule, or their numbers"
    )
    width: int = Field(default=128, ge=2, le=4096, multiple_of=2, description="of the hidden state")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="in the blocks, while training")
    only: tuple[int, ...] | None = Field(
        default=None, description="the receiver's layers that are changed; left out: all (agentflow adapters prune)"
    )

    def chosen(self, layers: int) -> tuple[int, ...]:
        """The receiver's layers that are changed.

        Raises:
            AdapterError: there are no such layers.
        """
        only = tuple(range(layers)) if self.only is None else self.only
        if list(only) != sorted(set(only)) or not only or not all(0 <= n < layers for n in only):
            raise AdapterError(f"`only` names {list(only)}; it takes some of the layers 0 to {layers - 1}, in order.")
        return only


class Bottleneck(nn.Module):
    """What is added to one layer's keys and values.

    Args:
        sender: numbers of a sender's position.
        shape: the receiver's heads and their widths.
    """

    def __init__(self, sender: int, shape: tuple[int, int, int], a: BottleneckArguments) -> None:
        super().__init__()
        heads, key_dim, value_dim = shape
        self.heads = heads
        self.theirs = nn.Linear(sender, a.width, bias=False)
        self.own = nn.Linear(heads * (key_dim + value_dim), a.width)
        self.blocks = nn.Sequential(*(FeedForward(a.width, 4 * a.width, a.dropout) for _ in range(2)))
        self.keys = nn.Linear(a.width // 2, heads * key_dim)
        self.values = nn.Linear(a.width // 2, heads * value_dim)
        self.key_weight, self.value_weight = nn.Linear(a.width, heads), nn.Linear(a.width, heads)
        for last in (self.keys, self.values):  # training begins where nothing is added
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`hidden (T, width)` of both models to additions `(heads, T, dim)` for keys and values."""
        hidden = self.blocks(hidden)
        of_keys, of_values = hidden.chunk(2, dim=-1)
        return (
            self._weighted(self.keys(of_keys), self.key_weight(hidden)),
            self._weighted(self.values(of_values), self.value_weight(hidden)),
        )

    def _weighted(self, added: Tensor, weight: Tensor) -> Tensor:
        return unflat(added, self.heads) * weight.sigmoid().T[..., None]


class LCFAligned(Adapter):
    """A bottleneck for each of the receiver's layers."""

    name = "lcf_aligned"
    Arguments = BottleneckArguments
    arguments: BottleneckArguments

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: BottleneckArguments) -> None:
        super().__init__(sender, receiver, arguments)
        matched = align_layers(len(sender.layers), len(receiver.layers), arguments.layers)
        self.pairs = [(n, matched[n]) for n in arguments.chosen(len(receiver.layers))]
        widths = state_widths(sender)
        self.layers = nn.ModuleList(Bottleneck(widths[m], receiver.layers[n], arguments) for n, m in self.pairs)
        self.gates = LayerGates(len(self.pairs))

    @property
    def bottlenecks(self) -> list[Bottleneck]:
        """Of the layers that are changed."""
        return cast(list[Bottleneck], list(self.layers))

    def encode(self, cache: KVCache, ropes: Ropes) -> dict[str, Tensor]:
        """`layers.N`, `(T, width)` for each of the receiver's layers that is changed."""
        del ropes
        self.require_sender(cache)
        rows = states(cache)
        return {
            f"layers.{n}": one.theirs(rows[m].to(self.gates.gate))
            for (n, m), one in zip(self.pairs, self.bottlenecks, strict=True)
        }

    def decode(self, codes: Mapping[str, Tensor], cache: KVCache, ropes: Ropes, partners: Tensor) -> KVCache:
        """Add what the message says; positions without a partner and layers whose gates are shut stay as they are."""
        del ropes
        places = (partners >= 0).nonzero()[:, 0]
        chosen = partners[places]
        drawn = self.gates.drawn(self.temperature) if self.training else None
        keys, values = list(cache.keys), list(cache.values)
        rows = states(cache)
        for at, ((n, _), one) in enumerate(zip(self.pairs, self.bottlenecks, strict=True)):
            code = part(codes, f"layers.{n}", (None, self.arguments.width))
            if drawn is None and not any(self.gates.open[at]):
                continue
            if len(chosen) and int(chosen.max()) >= len(code):
                raise AdapterError(f"The message has {len(code)} positions, and number {int(chosen.max())} is needed.")
            where = places.to(rows[n].device)
            own = rows[n].index_select(0, where).to(self.gates.gate)
            added = one(code[chosen.to(code.device)].to(own) + one.own(own))
            for which, tensors in enumerate((keys, values)):
                new = self.gates.passed(drawn, at, which, added[which])
                if new is not None:
                    tensors[n] = tensors[n].index_add(1, where, new.to(tensors[n]))
        return replace(cache, keys=tuple(keys), values=tuple(values), _arena=None)
