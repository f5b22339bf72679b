"""What a payload can hold: text, a cache, a cache in few bits, or an adapter's codes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.cache import KVCache
from agentflow.kv.quantize import QuantizedCache


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: str


def turns_of(items: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Turns from plain mappings `{role, content}`, refusing anything else."""
    turns = []
    for item in items:
        role, content = item.get("role"), item.get("content")
        if role not in ("system", "user", "assistant") or not isinstance(content, str) or len(item) != 2:
            raise PayloadError(f"A turn of a payload must be {{role, content}}, got keys {sorted(item)}.")
        turns.append(Turn(role, content))
    return tuple(turns)


@dataclass(frozen=True)
class TextBody:
    """A message in words: turns of a conversation, or one turn holding an answer."""

    turns: tuple[Turn, ...]

    @property
    def nbytes(self) -> int:
        """UTF-8 bytes of the contents."""
        return _text_bytes(self.turns)


@dataclass(frozen=True, eq=False)
class CacheBody:
    """A cache and the tokens it was computed from.

    Attributes:
        cache: the positions that travel.
        token_ids: every token of the trajectory up to `cache.next_position`, also of dropped positions.
        turns: the conversation those tokens came from; the receiver appends its turn to it.
        head: the token where that conversation begins, behind others that were joined before it.
    """

    cache: KVCache
    token_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    head: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors; the token ids (8 bytes each) and turns are part of what travels too."""
        return _travelling_bytes(self)


@dataclass(frozen=True, eq=False)
class QuantizedBody:
    """A `CacheBody` whose cache travels in few bits."""

    cache: QuantizedCache
    token_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    head: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, token ids (8 each), positions (8 each) and turns."""
        return _travelling_bytes(self)

    def dequantize(self, dtype: torch.dtype | None = None) -> CacheBody:
        """The body a receiver stands on, in `dtype` (by default the sender's)."""
        return CacheBody(self.cache.dequantize(dtype), self.token_ids, self.turns, self.head)


@dataclass(frozen=True, eq=False)
class CodesBody:
    """What an adapter sends: named tensors that only its bundle understands, and plain settings (JSON values)."""

    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, and of the settings as JSON."""
        text = json.dumps(dict(self.settings), ensure_ascii=False) if self.settings else ""
        tensors = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return tensors + len(text.encode("utf-8", "surrogatepass"))


Body = TextBody | CacheBody | QuantizedBody | CodesBody


def _travelling_bytes(body: CacheBody | QuantizedBody) -> int:
    numbers = len(body.token_ids) + len(body.cache) * (1 if body.cache.rotary is None else 2)
    return body.cache.nbytes + 8 * numbers + _text_bytes(body.turns)


def _text_bytes(turns: Sequence[Turn]) -> int:
    # A model may write half of a surrogate pair; it travels as well.
    return sum(len(t.content.encode("utf-8", "surrogatepass")) for t in turns)
