"""Cache-to-Cache (arXiv 2510.03215): a receiver's keys and values, fused with a sender's of the same text.

One fuser a receiver layer, keys and values apart. For each token the flattened heads of sender and receiver are put
side by side and mapped to a hidden state; one branch of it gives what is added to the receiver's heads, the other a
weight for each head; a gate for the whole layer opens or shuts. All of it is token-wise, so a batch of messages of
different lengths is their tokens in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from agentflow.adapters.base import Adapter, AdapterArguments, Layers, Ropes, flat
from agentflow.errors import AdapterError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.models.alignment import LayerRule, align_layers

NORM_EPS = 1e-6  # of the published weights


class C2CArguments(AdapterArguments):
    """Size of a C2C fuser, and which layers it joins. The published one is `width: 1024`."""

    width: int = Field(default=1024, ge=1, le=16384, description="of the hidden state")
    ffn_width: int | None = Field(
        default=None, ge=1, le=65536, description="of the feed-forward blocks but the weight's; left out: as width"
    )
    depth: int = Field(default=1, ge=1, le=16, description="feed-forward blocks before the projection")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="in the blocks, while training")
    layers: LayerRule | tuple[int, ...] = Field(
        default="terminal", description="the sender's layer for each of the receiver's: a rule, or their numbers"
    )


class FeedForward(nn.Module):
    """`x + W2 gelu(W1 rmsnorm(x))`, without biases; `(..., width)` in and out."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        out: Tensor = x + F.dropout(self.down(self.inner(x)), self.dropout, self.training)
        return out

    def inner(self, x: Tensor) -> Tensor:
        """`gelu(W1 rmsnorm(x))`."""
        return F.gelu(self.up(self.norm(x)))

    def inner_of_unit(self, unit: Tensor) -> Tensor:
        """The same of `x` by its root mean square: the norm's weight goes into the matrix, which has fewer rows."""
        return F.gelu(unit @ (self.up.weight * self.norm.weight).t())

    def onto(self, x: Tensor, unit: Tensor) -> None:
        """The whole block in evaluation, written over `x (T, width)`."""
        x.addmm_(self.inner_of_unit(unit), self.down.weight.t())


class Fuser(nn.Module):
    """What is added to one layer's keys, or to its values.

    Args:
        sender_width, heads, head_dim: the sender's heads flattened, and the receiver's heads.
    """

    def __init__(self, sender_width: int, heads: int, head_dim: int, a: C2CArguments) -> None:
        super().__init__()
        self.heads = heads
        inner = a.ffn_width or a.width
        self.join = nn.Linear(sender_width + heads * head_dim, a.width)
        self.shared = FeedForward(a.width, inner, a.dropout)
        self.weight_block = FeedForward(a.width, a.width, a.dropout)
        self.weight = nn.Linear(a.width, heads)
        self.blocks = nn.ModuleList(FeedForward(a.width, inner, a.dropout) for _ in range(a.depth))
        self.project = nn.Linear(a.width, heads * head_dim)
        # Training begins where nothing is added, whatever the gates draw.
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, sender: Tensor, receiver: Tensor, temperature: float) -> Tensor:
        """What to add to `receiver (..., heads, T, head_dim)` for `sender (..., sender_heads, T, sender_dim)`.

        Args:
            temperature: of the gate, while training; in evaluation it is open or shut.
        """
        joined = torch.cat([flat(sender), flat(receiver)], dim=-1)
        hidden = self.shared(self.join(joined))
        weight: Tensor = self.weight(self.weight_block(hidden)).sigmoid().transpose(-1, -2).unsqueeze(-1)
        for block in self.blocks:
            hidden = block(hidden)
        projected: Tensor = self.project(hidden).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
        if self.training:
            return self._drawn_gate(weight, temperature) * weight * projected
        return (weight * projected).masked_fill(self.gate <= 0, 0.0)  # a product with 0 could be no number

    def added(self, sender: Tensor, receiver: Tensor) -> Tensor:
        """What an open gate adds to `receiver (heads, T, head_dim)` in evaluation: `forward` in fewer products.

        Sums are begun with what they are added to, or made in place, heads come out of the last product in their own
        order, and the weight's block ends in one product of `heads` columns, where its formula has two.
        """
        joined, of_sender = self.join.weight, sender.shape[0] * sender.shape[2]
        hidden = torch.addmm(self.join.bias, flat(sender), joined[:, :of_sender].t())
        hidden.addmm_(flat(receiver), joined[:, of_sender:].t())
        self.shared.onto(hidden, _unit(hidden))
        unit = _unit(hidden)
        weight = torch.addmm(self.weight.bias[:, None], self.weight.weight, hidden.t())
        weight.addmm_(self.weight.weight @ self.weight_block.down.weight, self.weight_block.inner_of_unit(unit).t())
        for n, block in enumerate(cast(list[FeedForward], list(self.blocks))):
            block.onto(hidden, _unit(hidden) if n else unit)
        columns = self.project.weight.view(self.heads, -1, hidden.shape[1]).transpose(1, 2)
        bias = self.project.bias.view(self.heads, 1, -1)
        projected = torch.baddbmm(bias, hidden.expand(self.heads, -1, -1), columns)
        return projected.mul_(weight.sigmoid_().unsqueeze(-1))

    def _drawn_gate(self, like: Tensor, temperature: float) -> Tensor:
        """A Gumbel-sigmoid draw for each token and head: a difference of two Gumbels is logistic."""
        uniform = torch.rand_like(like).clamp(1e-6, 1 - 1e-6)
        logit: Tensor = self.gate + uniform.logit()
        return (logit / temperature).sigmoid()


class C2C(Adapter):
    """Fusers of all layers of a receiver."""

    name = "c2c"
    Arguments = C2CArguments
    arguments: C2CArguments

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: C2CArguments) -> None:
        super().__init__(sender, receiver, arguments)
        self.pairs = align_layers(len(sender.layers), len(receiver.layers), arguments.layers)
        keys, values = [], []
        for (heads, key_dim, value_dim), source in zip(receiver.layers, self.pairs, strict=True):
            sender_heads, sender_key_dim, sender_value_dim = sender.layers[source]
            keys.append(Fuser(sender_heads * sender_key_dim, heads, key_dim, arguments))
            values.append(Fuser(sender_heads * sender_value_dim, heads, value_dim, arguments))
        self.keys, self.values = nn.ModuleList(keys), nn.ModuleList(values)
        self._open: list[tuple[bool, bool]] | None = None

    def train(self, mode: bool = True) -> C2C:
        """Choose training or evaluation; gates are read again afterwards."""
        self._open = None
        return super().train(mode)

    @property
    def fusers(self) -> tuple[list[Fuser], list[Fuser]]:
        """Of the keys and of the values, layer by layer."""
        return cast(list[Fuser], list(self.keys)), cast(list[Fuser], list(self.values))

    @property
    def open_gates(self) -> list[tuple[bool, bool]]:
        """For each layer whether keys and values are changed; read once, because asking a device stops it."""
        if self._open is None:
            logits = (torch.stack([f.gate.detach() for f in fusers]) for fusers in self.fusers)
            self._open = list(zip(*(row.gt(0).tolist() for row in logits), strict=True))
        return self._open

    def added(self, sender: Layers, receiver: Layers) -> Layers:
        """What is added to every layer of `receiver`; the same tokens stand at the same places of both."""

        def over(fusers: list[Fuser], theirs: Sequence[Tensor], own: Sequence[Tensor]) -> list[Tensor]:
            pairs = zip(fusers, self.pairs, own, strict=True)
            return [fuser(theirs[source], mine, self.temperature) for fuser, source, mine in pairs]

        of_keys, of_values = self.fusers
        return Layers(over(of_keys, sender.keys, receiver.keys), over(of_values, sender.values, receiver.values))

    def forward(
        self, theirs: Sequence[KVCache], own: Sequence[KVCache], ropes: tuple[Ropes, Ropes], partners: Sequence[Tensor]
    ) -> list[KVCache]:
        """Fuse a batch: its tokens in a row, whatever message they are of."""
        del ropes
        places = [(p >= 0).nonzero()[:, 0] for p in partners]
        chosen = [p[at] for p, at in zip(partners, places, strict=True)]
        added = self.added(_rows(theirs, chosen), _rows(own, places))
        lengths = [len(at) for at in places]
        keys, values = (
            [cast(Sequence[Tensor], torch.split(t, lengths, dim=-2)) for t in part]
            for part in (added.keys, added.values)
        )
        return [
            replace(
                cache,
                keys=tuple(_plus(k, at, new[n]) for k, new in zip(cache.keys, keys, strict=True)),
                values=tuple(_plus(v, at, new[n]) for v, new in zip(cache.values, values, strict=True)),
                _arena=None,
            )
            for n, (cache, at) in enumerate(zip(own, places, strict=True))
        ]

    def encode(self, cache: KVCache, ropes: Ropes) -> dict[str, Tensor]:
        """Keys and values of the layers that a fuser looks at: `layers.N.key`, `layers.N.value`."""
        del ropes
        self.require_sender(cache)
        parts: dict[str, Tensor] = {}
        for n in sorted(set(self.pairs)):
            parts |= {f"layers.{n}.key": cache.keys[n], f"layers.{n}.value": cache.values[n]}
        return parts

    def decode(self, codes: Mapping[str, Tensor], cache: KVCache, ropes: Ropes, partners: Tensor) -> KVCache:
        """Fuse; positions without a partner and layers whose gate is shut stay as they are, bit by bit."""
        del ropes
        if not any(map(any, self.open_gates)):
            return cache
        pairing, fused = _Pairing(partners), cache.copied()
        for n, (source, is_open) in enumerate(zip(self.pairs, self.open_gates, strict=True)):
            parts = zip((fused.keys, fused.values), ("key", "value"), self.fusers, is_open, strict=True)
            for own, part, fusers, opened in parts:
                if opened:
                    pairing.fuse(fusers[n], self._part(codes, source, part, pairing.least), own[n])
        return fused

    def _part(self, codes: Mapping[str, Tensor], layer: int, part: str, least: int) -> Tensor:
        """Keys or values of a sender's layer, if they are of its shape and of at least so many positions."""
        name = f"layers.{layer}.{part}"
        heads, key_dim, value_dim = self.sender.layers[layer]
        wanted = heads, key_dim if part == "key" else value_dim
        found = codes.get(name)
        fits = found is not None and found.ndim == 3 and found.is_floating_point() and found.shape[1] >= least
        if found is None or not fits or (found.shape[0], found.shape[2]) != wanted:
            shape = "nothing" if found is None else f"{found.dtype} of the shape {tuple(found.shape)}"
            raise AdapterError(
                f"The message has {shape} as {name}; this adapter's sender has {wanted[0]} x {wanted[1]}."
            )
        return found


class _Pairing:
    """Which positions of a sender's are fused into which of a receiver's.

    Chosen on the CPU, where the partners are: no device has to be waited for. Each device gets the numbers once.
    """

    def __init__(self, partners: Tensor) -> None:
        places = (partners >= 0).nonzero()[:, 0]
        chosen = partners[places]
        self.least = int(partners.max()) + 1 if len(partners) else 0
        """How many positions the sender must have."""
        everywhere = torch.arange(len(partners))
        self._on_cpu = (
            None if torch.equal(chosen, everywhere) else chosen,
            None if torch.equal(places, everywhere) else places,
        )
        self._on: dict[torch.device, tuple[Tensor | None, Tensor | None]] = {}

    def fuse(self, fuser: Fuser, theirs: Tensor, own: Tensor) -> None:
        """Fuse `theirs (sender_heads, S, sender_dim)` into `own (heads, T, dim)`, in place."""
        chosen, places = self._at(theirs.device)[0], self._at(own.device)[1]
        sender = theirs[:, : self.least] if chosen is None else theirs.index_select(1, chosen)
        sender = sender.to(own.device, own.dtype, non_blocking=True)
        if places is None:
            own.add_(fuser.added(sender, own))
        else:
            own.index_add_(1, places, fuser.added(sender, own.index_select(1, places)))

    def _at(self, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        if device not in self._on:
            chosen, places = (None if t is None else t.to(device, non_blocking=True) for t in self._on_cpu)
            self._on[device] = chosen, places
        return self._on[device]


def _rows(caches: Sequence[KVCache], picked: Sequence[Tensor]) -> Layers:
    """These positions of every cache, one behind the other."""

    def joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        layers = zip(*parts, strict=True)
        return [torch.cat([_taken(t, at) for t, at in zip(row, picked, strict=True)], dim=1).float() for row in layers]

    return Layers(joined([c.keys for c in caches]), joined([c.values for c in caches]))


def _taken(tensor: Tensor, at: Tensor) -> Tensor:
    """Positions `at` of `(heads, T, dim)`; a view where these are the first ones."""
    if torch.equal(at, torch.arange(len(at))):
        return tensor[:, : len(at)]
    return tensor.index_select(1, at.to(tensor.device))


def _plus(tensor: Tensor, at: Tensor, new: Tensor) -> Tensor:
    """`tensor (heads, T, dim)` with `new` added at the positions `at`, each named once."""
    if len(at) == tensor.shape[1]:
        return tensor + new.to(tensor)
    return tensor.index_add(1, at.to(tensor.device), new.to(tensor))


def _unit(x: Tensor) -> Tensor:
    """`x (T, width)` by the root mean square of each row."""
    return F.rms_norm(x, x.shape[-1:], eps=NORM_EPS)
