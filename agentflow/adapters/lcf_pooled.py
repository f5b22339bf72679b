"""Variant `pooled` (LCF-X of arXiv 2605.22863): contexts differ, and one vector a layer crosses.

Learnt queries pool each span of the sender's positions, and then all spans; another pools what the receiver has of its
own. Both together go through a bottleneck, and the result is added to the receiver's keys and values at every position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from agentflow.adapters.base import Adapter, Ropes
from agentflow.adapters.gates import LayerGates
from agentflow.adapters.lcf import part, state_widths, states
from agentflow.adapters.lcf_aligned import Bottleneck, BottleneckArguments
from agentflow.errors import AdapterError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.rope import turn
from agentflow.models.alignment import align_layers


class PooledArguments(BottleneckArguments):
    """Size of the bottleneck, and of a span."""

    span: int = Field(default=32, ge=1, le=65536, description="positions that are pooled first")
    heads: int = Field(default=4, ge=1, le=256, description="of the pooling attention; they divide the width")


class Pool(nn.Module):
    """One learnt query over some positions: `(B, T, width)` to `(B, width)`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) * width**-0.5)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Pool; `hidden (B, T)` is true where there is no position."""
        query = self.query.expand(len(x), 1, -1)
        out: Tensor = self.attention(query, x, x, key_padding_mask=hidden, need_weights=False)[0]
        return out[:, 0]


class PooledLayer(nn.Module):
    """One layer's summary of the sender, and what it makes of it at the receiver."""

    def __init__(self, sender: int, shape: tuple[int, int, int], a: PooledArguments) -> None:
        super().__init__()
        self.span = a.span
        self.inner = Bottleneck(sender, shape, a)
        self.within, self.across, self.own = (Pool(a.width, a.heads) for _ in range(3))
        self.join = nn.Linear(2 * a.width, a.width)

    def summary(self, rows: Tensor) -> Tensor:
        """`(width,)` of the sender's states `(T, numbers)`."""
        x = self.inner.theirs(rows)
        missing = -len(x) % self.span
        padded = torch.cat([x, x.new_zeros(missing, x.shape[-1])]).view(-1, self.span, x.shape[-1])
        hidden = (torch.arange(padded.shape[0] * self.span, device=x.device) >= len(x)).view(-1, self.span)
        pooled: Tensor = self.across(self.within(padded, hidden)[None])[0]
        return pooled

    def forward(self, summary: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """What is added at every position `(heads, 1, dim)`, keys as before RoPE; `own (T, numbers)` are its states."""
        mine = self.own(self.inner.own(own)[None])
        added: tuple[Tensor, Tensor] = self.inner(self.join(torch.cat([summary[None], mine], dim=-1)))
        return added


class LCFPooled(Adapter):
    """One summary vector a layer, heard at every position of the receiver's turn."""

    name = "lcf_pooled"
    place = "turn"
    Arguments = PooledArguments
    arguments: PooledArguments

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: PooledArguments) -> None:
        super().__init__(sender, receiver, arguments)
        if arguments.width % arguments.heads:
            raise AdapterError(f"{arguments.heads} heads don't divide a width of {arguments.width}.")
        matched = align_layers(len(sender.layers), len(receiver.layers), arguments.layers)
        self.pairs = [(n, matched[n]) for n in arguments.chosen(len(receiver.layers))]
        widths = state_widths(sender)
        self.layers = nn.ModuleList(PooledLayer(widths[m], receiver.layers[n], arguments) for n, m in self.pairs)
        self.gates = LayerGates(len(self.pairs))

    @property
    def summarisers(self) -> list[PooledLayer]:
        """Of the layers that are changed."""
        return cast(list[PooledLayer], list(self.layers))

    def encode(self, cache: KVCache, ropes: Ropes) -> dict[str, Tensor]:
        """`summaries`, `(layers, width)`."""
        self.require_sender(cache)
        rows = states(cache, ropes)
        pairs = zip(self.pairs, self.summarisers, strict=True)
        return {"summaries": torch.stack([one.summary(rows[m].to(self.gates.gate)) for (_, m), one in pairs])}

    def decode(self, codes: Mapping[str, Tensor], cache: KVCache, ropes: Ropes, partners: Tensor) -> KVCache:
        """Add the message at every position; layers whose gates are shut stay as they are."""
        del partners
        summaries = part(codes, "summaries", (len(self.pairs), self.arguments.width)).to(self.gates.gate)
        drawn = self.gates.drawn(self.temperature) if self.training else None
        keys, values = list(cache.keys), list(cache.values)
        rows = states(cache, ropes)
        for at, ((n, _), one) in enumerate(zip(self.pairs, self.summarisers, strict=True)):
            if drawn is None and not any(self.gates.open[at]):
                continue
            key, value = one(summaries[at], rows[n].to(summaries))
            spread = key.expand(-1, len(cache), -1)
            (key,) = turn([spread], [cache.rotary_positions.to(spread.device)], [ropes[n]])
            for which, (tensors, added) in enumerate(((keys, key), (values, value))):
                new = self.gates.passed(drawn, at, which, added)
                if new is not None:
                    tensors[n] = tensors[n] + new.to(tensors[n])
        return replace(cache, keys=tuple(keys), values=tuple(values), _arena=None)
