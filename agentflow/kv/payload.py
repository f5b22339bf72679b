"""What travels between agents: a header that says what it is, and a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch

from agentflow.errors import PayloadError
from agentflow.kv.bodies import Body, CacheBody, CodesBody, QuantizedBody, TextBody, Turn, turns_of
from agentflow.kv.geometry import Geometry
from agentflow.kv.packing import Bits
from agentflow.kv.quantize import GROUP, SINKS, quantize

__all__ = [
    "SCHEMA_VERSION",
    "Body",
    "CacheBody",
    "CodesBody",
    "Fingerprint",
    "Header",
    "Payload",
    "QuantizedBody",
    "TextBody",
    "Turn",
    "turns_of",
]

SCHEMA_VERSION = 2
COMPARED = ("geometry", "weights", "tokenizer", "rope")
"""What of a fingerprint must be equal."""


@dataclass(frozen=True)
class Fingerprint:
    """What must be equal at both ends for a cache to make sense there.

    Attributes:
        model: the name for people; not compared.
        geometry: layers, KV heads and head widths.
        weights: digest of the weights.
        tokenizer: digest of the tokenizer, its chat template included.
        rope: the rotary embedding's kind and parameters.
    """

    model: str
    geometry: Geometry
    weights: str
    tokenizer: str
    rope: str

    def differences(self, other: Fingerprint, fields: Sequence[str] = COMPARED) -> list[str]:
        """Name what differs, for people; empty when a cache of one is at home in the other."""
        found = []
        for name in fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(f"{name} ({_short(mine)} here, {_short(theirs)} there)")
        return found

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Fingerprint:
        """From plain values, as `dataclasses.asdict` and JSON give them.

        Raises:
            LookupError, TypeError, ValueError: they are none.
        """
        layers = cast(Any, tuple(tuple(int(n) for n in layer) for layer in raw["geometry"]["layers"]))
        return cls(**{**raw, "geometry": Geometry(layers)})


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:12] + "…"


@dataclass(frozen=True)
class Header:
    """Who sent what over which channel.

    Attributes:
        channel: the channel's registered name.
        sender: the node that sent it.
        fingerprint: of the model whose cache or codes these are; None for text.
        tokens: length of the sender's trajectory in tokens of that model (0 when unknown: text).
        kept: positions that are left of them.
        losses: everything on the way that was not lossless, in words.
    """

    channel: str
    sender: str
    fingerprint: Fingerprint | None = None
    tokens: int = 0
    kept: int = 0
    losses: tuple[str, ...] = ()
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True, eq=False)
class Payload:
    """A message on its way: header and body; what it cost so far (seconds, counts) and what somebody should know
    about it are no part of the file.
    """

    header: Header
    body: Body
    stats: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the body as they would travel."""
        return self.body.nbytes

    def with_stats(self, **more: float) -> Payload:
        """The same payload with further figures."""
        return replace(self, stats={**self.stats, **more})

    def require(self, receiver: Fingerprint) -> None:
        """Refuse a payload whose model is not the receiver's, by name of what differs."""
        sent, body = self.header.fingerprint, self.body
        differing = [] if sent is None else receiver.differences(sent)
        if isinstance(body, CacheBody | QuantizedBody) and not differing and body.cache.geometry != receiver.geometry:
            raise PayloadError(
                f"A cache of {body.cache.geometry} does not fit '{receiver.model}' of {receiver.geometry}.",
                fix="Its header names another model than its tensors come from; send it again.",
            )
        if differing:
            assert sent is not None
            raise PayloadError(
                f"A payload of the model '{sent.model}' does not fit '{receiver.model}': "
                f"different {', '.join(differing)}.",
                fix="Send it over a channel that crosses models (text), or load the sender's model at the receiver.",
            )

    def quantized(self, bits: Bits = 4, *, group: int = GROUP, sinks: int = SINKS) -> Payload:
        """The same payload with its cache in few bits (see `kv.quantize`), and the loss said in its header."""
        if not isinstance(self.body, CacheBody):
            raise PayloadError(f"Only a cache can be quantised, and the payload from '{self.header.sender}' has none.")
        body = self.body
        small = quantize(body.cache, bits, group=group, sinks=sinks)
        header = replace(self.header, losses=(*self.header.losses, small.loss))
        return replace(self, header=header, body=QuantizedBody(small, body.token_ids, body.turns, body.head))

    def dequantized(self, dtype: torch.dtype | None = None) -> Payload:
        """The same payload with a cache that a model can stand on; itself when nothing is quantised."""
        if not isinstance(self.body, QuantizedBody):
            return self
        return replace(self, body=self.body.dequantize(dtype))
