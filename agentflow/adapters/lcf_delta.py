"""Variant `delta`: what the sender knows and the receiver lacks, written into the receiver's values.

Four steps: the sender's keys and values are projected to a few numbers a position, by principal components of each
layer and then across the layers, in four bits; an encoder that both sides share gives the difference between the
message and a summary of the receiver's own state; every position of the receiver attends to that difference, and a
small denoising network turns what it finds into a change of its values; the change is made where the position's key
looks like the message's centre. Each step can be switched off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from agentflow.adapters.base import Adapter, Ropes
from agentflow.adapters.closed_form import Fitted, Moments
from agentflow.adapters.compressor import Compressor
from agentflow.adapters.denoiser import Denoiser
from agentflow.adapters.gates import OPEN, LayerGates
from agentflow.adapters.lcf import LayeredArguments, part, states, unflat
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.models.alignment import align_layers


class DeltaArguments(LayeredArguments):
    """Sizes of the steps, and which of them are taken."""

    d_z: int = Field(default=64, ge=1, le=1024, description="numbers a position and layer")
    joint: float = Field(
        default=0.5, gt=0, le=1, description="share of them that is kept across the layers; 1: no second step"
    )
    width: int = Field(default=128, ge=1, le=1024, description="of the encoder")
    relative: bool = Field(default=True, description="take the receiver's own state off the message")
    denoise: float = Field(
        default=0.1, ge=0, le=10, description="noise that the decoder is trained to take out, in standard deviations"
    )
    threshold: float | None = Field(
        default=0.0, ge=-1, le=1, description="least likeness of a key to the message's centre; none: every position"
    )


class LCFDelta(Adapter, Fitted):
    """A message as the difference that it makes."""

    name = "lcf_delta"
    place = "turn"
    stages = 2
    Arguments = DeltaArguments
    arguments: DeltaArguments

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: DeltaArguments) -> None:
        super().__init__(sender, receiver, arguments)
        a, layers = arguments, len(receiver.layers)
        self.pairs = align_layers(len(sender.layers), layers, a.layers)
        self.theirs = Compressor(sender, sorted(set(self.pairs)), a.d_z, a.joint)
        self.own = Compressor(receiver, range(layers), a.d_z, 1.0)
        self.encoder = nn.Sequential(nn.RMSNorm(a.d_z), nn.Linear(a.d_z, a.width), nn.GELU(), nn.Linear(a.width, a.d_z))
        self.message = nn.Sequential(nn.Linear(a.d_z, a.width), nn.GELU(), nn.Linear(a.width, a.d_z))
        self.layer = nn.Parameter(torch.zeros(layers, a.d_z))
        """Added to both sides' codes: which layer they are of."""
        self.decay = nn.Parameter(torch.zeros(layers))
        """Logit of γ: how much of the receiver's own state is taken off."""
        widths = [heads * key_dim for heads, key_dim, _ in receiver.layers]
        self.queries = nn.ModuleList(nn.Linear(n, a.d_z, bias=False) for n in widths)
        self.key, self.value = nn.Linear(a.d_z, a.d_z, bias=False), nn.Linear(a.d_z, a.d_z, bias=False)
        self.decoder = Denoiser(a.d_z, a.width)
        self.out = nn.ModuleList(nn.Linear(a.d_z, heads * value_dim) for heads, _, value_dim in receiver.layers)
        for last in cast(list[nn.Linear], list(self.out)):  # training begins where nothing is added
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.blend = nn.Parameter(torch.zeros(layers))
        """Logit of the interpolation's weight."""
        self.gates = LayerGates(layers, 1)

    def moments(self, stage: int) -> list[Moments]:
        """Empty sums for the compressors of both sides."""
        return [*self.theirs.moments(stage), *self.own.moments(stage)]

    def take(self, stage: int, moments: Sequence[Moments], theirs: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        """Take in a text."""
        split = len(self.theirs.moments(stage))
        self.theirs.take(stage, moments[:split], theirs)
        self.own.take(stage, moments[split:], own)

    @torch.no_grad()
    def settle(self, stage: int, moments: Sequence[Moments], ridge: float) -> None:
        """Set the compressors to the principal components."""
        del ridge
        split = len(self.theirs.moments(stage))
        self.theirs.settle(stage, moments[:split])
        self.own.settle(stage, moments[split:])
        self.gates.gate.fill_(OPEN)

    def encode(self, cache: KVCache, ropes: Ropes) -> dict[str, Tensor]:
        """`codes`, `(T, numbers)`: every position in few numbers."""
        self.require_sender(cache)
        return {"codes": self.theirs(states(cache, ropes))}

    def decode(self, codes: Mapping[str, Tensor], cache: KVCache, ropes: Ropes, partners: Tensor) -> KVCache:
        """Change the values of positions that look like the message; others and shut layers stay as they are."""
        del partners
        sent = self.theirs.spread(part(codes, "codes", (None, self.theirs.size)).to(self.decay))
        if not len(next(iter(sent.values()))):
            return cache
        drawn = self.gates.drawn(self.temperature)[:, 0] if self.training else None
        own = states(cache, ropes)
        summaries = self.summaries(own)
        values = list(cache.values)
        for n, source in enumerate(self.pairs):
            if drawn is None and not self.gates.open[n][0]:
                continue
            delta = self.delta(n, sent[source], summaries[n])
            heads, key_dim, _ = self.receiver.layers[n]
            change = self._change(n, delta, own[n][:, : heads * key_dim].to(delta))
            weight = self.blend[n].sigmoid() * (drawn[n] if drawn is not None else 1.0)
            values[n] = values[n] + unflat(weight * change, values[n].shape[0]).to(values[n])
        return replace(cache, values=tuple(values), _arena=None)

    def likeness(
        self, theirs: Sequence[KVCache], own: Sequence[KVCache], taught: Sequence[KVCache], ropes: tuple[Ropes, Ropes]
    ) -> Tensor:
        """Cosines of what each message adds, on the mean, and what a receiver knows who read the text."""
        messages = [self._added(self.encode(a, ropes[0]), b, ropes[1]) for a, b in zip(theirs, own, strict=True)]
        texts = [self._known(cache, ropes[1]) for cache in taught]
        return F.normalize(torch.stack(messages), dim=-1) @ F.normalize(torch.stack(texts), dim=-1).T

    def _added(self, codes: Mapping[str, Tensor], cache: KVCache, ropes: Ropes) -> Tensor:
        """`(layers * d_z,)`: the mean of Δz over the message's positions, layer by layer."""
        sent = self.theirs.spread(codes["codes"])
        rows = zip(self.pairs, self.summaries(states(cache, ropes)), strict=True)
        return torch.cat([self.delta(n, sent[m], known).mean(0) for n, (m, known) in enumerate(rows)])

    def _known(self, cache: KVCache, ropes: Ropes) -> Tensor:
        """`(layers * d_z,)`: the receiver's state by the encoder that both sides share, layer by layer."""
        return torch.cat([self.encoder(z + self.layer[n]) for n, z in enumerate(self.summaries(states(cache, ropes)))])

    def summaries(self, own: Sequence[Tensor]) -> list[Tensor]:
        """z_t: the receiver's own states in each layer, `(d_z,)`: their codes added up."""
        return [rows.sum(0) for rows in self.own.parts(own).values()]

    def delta(self, n: int, sent: Tensor, summary: Tensor) -> Tensor:
        """Δz `(T, d_z)` of a layer: the message less γ times what the receiver has, by one encoder for both."""
        message: Tensor = self.message(self.encoder(sent + self.layer[n]))
        if not self.arguments.relative:
            return message
        known: Tensor = self.encoder(summary + self.layer[n])
        return message - self.decay[n].sigmoid() * known

    def _change(self, n: int, delta: Tensor, keys: Tensor) -> Tensor:
        """Ṽ `(T_own, heads * value_dim)`: what each of the receiver's positions finds in the message."""
        a = self.arguments
        wanted, offered = self.queries[n](keys), self.key(delta)
        attention = (wanted @ offered.T * a.d_z**-0.5).softmax(dim=-1)
        change: Tensor = self.out[n](self.decoder(attention @ self.value(delta), a.denoise if self.training else 0.0))
        if a.threshold is None:
            return change
        likeness = F.cosine_similarity(wanted, offered.mean(0, keepdim=True), dim=-1)
        near = (likeness > a.threshold).to(change)
        if self.training:  # a step has no gradient: that of a slope stands in for it
            slope = ((likeness - a.threshold) * 10).sigmoid()
            near = near + slope - slope.detach()
        return change * near[:, None]
