"""What travels between agents: a header that says what it is, and a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.cache import Geometry, KVCache

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: str


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

    def differences(self, other: Fingerprint) -> list[str]:
        """Name what differs, for people; empty when a cache of one is at home in the other."""
        found = []
        for name in ("geometry", "weights", "tokenizer", "rope"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(f"{name} ({_short(mine)} here, {_short(theirs)} there)")
        return found


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


@dataclass(frozen=True)
class TextBody:
    """A message in words: turns of a conversation, or one turn holding an answer."""

    turns: tuple[Turn, ...]

    @property
    def nbytes(self) -> int:
        """UTF-8 bytes of the contents."""
        return sum(len(t.content.encode()) for t in self.turns)


@dataclass(frozen=True, eq=False)
class CacheBody:
    """A cache and the tokens it was computed from.

    Attributes:
        cache: the positions that travel.
        token_ids: every token of the trajectory up to `cache.next_position`, also of dropped positions.
        turns: the conversation those tokens came from; the receiver appends its turn to it.
    """

    cache: KVCache
    token_ids: tuple[int, ...]
    turns: tuple[Turn, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors; the token ids (8 bytes each) and turns are part of what travels too."""
        text = sum(len(t.content.encode()) for t in self.turns)
        return self.cache.nbytes + 8 * (len(self.token_ids) + len(self.cache)) + text


@dataclass(frozen=True, eq=False)
class CodesBody:
    """What an adapter sends: named tensors that only its bundle understands, and plain settings."""

    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


Body = TextBody | CacheBody | CodesBody


@dataclass(frozen=True, eq=False)
class Payload:
    """A message on its way: header, body, and what it cost so far (seconds, counts; not part of the file)."""

    header: Header
    body: Body
    stats: Mapping[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the body as they would travel."""
        return self.body.nbytes

    def with_stats(self, **more: float) -> Payload:
        """The same payload with further figures."""
        return replace(self, stats={**self.stats, **more})

    def require(self, receiver: Fingerprint) -> None:
        """Refuse a payload whose model is not the receiver's, by name of what differs."""
        sent = self.header.fingerprint
        differing = [] if sent is None else receiver.differences(sent)
        if differing:
            assert sent is not None
            raise PayloadError(
                f"A payload of the model '{sent.model}' does not fit '{receiver.model}': "
                f"different {', '.join(differing)}.",
                fix="Send it over a channel that crosses models (text), or load the sender's model at the receiver.",
            )


def turns_of(items: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Turns from plain mappings `{role, content}`, refusing anything else."""
    turns = []
    for item in items:
        role, content = item.get("role"), item.get("content")
        if role not in ("system", "user", "assistant") or not isinstance(content, str) or len(item) != 2:
            raise PayloadError(f"A turn of a payload must be {{role, content}}, got keys {sorted(item)}.")
        turns.append(Turn(role, content))
    return tuple(turns)
