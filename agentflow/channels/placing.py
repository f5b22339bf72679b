"""Where a receiver finds what an adapter sent: in its own cache of the same text, before its conversation, or in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentflow.adapters.base import Adapter
from agentflow.adapters.bundle import Bundle, find_bundle
from agentflow.channels.base import Context, Joining, Message
from agentflow.channels.trajectory import read
from agentflow.errors import PayloadError
from agentflow.kv.bodies import CodesBody
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Fingerprint, Header, Payload, Turn, turns_of
from agentflow.models.alignment import align, spans_of
from agentflow.models.chat import anchor
from agentflow.models.engine import Engine
from agentflow.models.spec import ModelSpec

SPANS, PLACES = "spans", "places"
"""Tensors beside an adapter's codes: where each of the sender's tokens stands, and which of them the codes are of."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Codes as they travel, what must be known to unpack them, and what was lost, in words."""

    tensors: dict[str, Tensor]
    settings: dict[str, Any] = field(default_factory=dict)
    losses: tuple[str, ...] = ()


def beside(message: Message, cache: KVCache) -> dict[str, Tensor]:
    """Where the tokens of a message stand in its text, and which of them `cache` still has."""
    assert message.engine is not None
    spans = spans_of(message.engine.tokenizer, message.token_ids[message.head : cache.next_position], message.turns)
    places = (cache.positions - message.head).cpu()
    return {SPANS: spans.to(torch.int32), PLACES: places.to(torch.int32)}


@dataclass(frozen=True, eq=False)
class Opened:
    """What a payload holds: an adapter's codes, whose they are, and where they belong in which conversation.

    Attributes:
        spans, places, turns: empty where the text does not travel.
    """

    header: Header
    codes: dict[str, Tensor]
    spans: Tensor
    places: Tensor
    turns: tuple[Turn, ...]
    sender: ModelSpec
    mark: Fingerprint

    @classmethod
    def of(
        cls,
        payload: Payload,
        channel: str,
        unpacked: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Tensor]],
    ) -> Opened:
        """Open a payload; another channel's, or a damaged one, is refused with a `PayloadError`."""
        body, header = payload.body, payload.header
        if header.channel != channel or not isinstance(body, CodesBody) or header.fingerprint is None:
            raise PayloadError(
                f"The payload from '{header.sender}' was sent over '{header.channel}', not '{channel}'.",
                fix="Receive it with the channel that sent it.",
            )
        codes = dict(body.tensors)
        try:
            spans, places = _spans(codes) if "turns" in body.settings else (torch.zeros(0, 3), torch.zeros(0))
            source, revision = body.settings["source"]
            sender = ModelSpec(model=header.fingerprint.model, source=source, revision=revision)
            turns = turns_of(body.settings.get("turns", ()))
            codes = unpacked(codes, body.settings)
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
            what = f"The payload from '{header.sender}' can't be used: {error}."
            raise PayloadError(what, fix="Send it again.") from None
        return cls(header, codes, spans.long(), places.long(), turns, sender, header.fingerprint)

    def partners(self, own: Tensor) -> Tensor:
        """For each of the receiver's tokens, of the spans `own`, the number of the code of the same text, or -1."""
        numbers = torch.full((len(self.spans) + 1,), -1)
        numbers[self.places] = torch.arange(len(self.places))
        return numbers[align(own, self.spans)]  # the last number is for -1: no partner


def placed(opened: Opened, bundle: Bundle, receiver: Engine) -> Context:
    """The message where this adapter's receivers find it.

    Raises:
        PayloadError, AdapterError: the payload is another's, or damaged.
    """
    own, card = receiver.loaded, bundle.card
    warnings = (
        *card.sender.require("sender", opened.mark, same_source=card.sender.same_source(opened.sender)),
        *card.receiver.require("receiver", own.fingerprint, same_source=card.receiver.same_source(own.spec)),
    )
    adapter = loaded(bundle, own.device, own.dtype)
    where = {"text": _in_text, "front": _in_front, "turn": _in_turn}[adapter.place]
    if adapter.place == "text" and not opened.turns:
        raise PayloadError(f"The payload from '{opened.header.sender}' comes without its text.", fix="Send it again.")
    return where(opened, adapter, receiver, warnings)


def _in_text(opened: Opened, adapter: Adapter, receiver: Engine, warnings: tuple[str, ...]) -> Context:
    """Read the conversation with the receiver's model, and write the codes into its cache of it."""
    own, start = receiver.loaded, time.perf_counter()
    base, token_ids, computed = read(opened.turns, receiver)
    read_at = time.perf_counter()
    partners = opened.partners(spans_of(own.tokenizer, token_ids, opened.turns))
    cache = adapter.decode(opened.codes, base, own.ropes, partners)
    stats = {
        "own_tokens": float(computed),
        "own_seconds": read_at - start,
        "adapt_seconds": time.perf_counter() - read_at,
        "aligned_share": float((partners >= 0).float().mean()),
    }
    return Context(
        turns=opened.turns,
        cache=cache,
        base=base,
        token_ids=token_ids,
        losses=_losses(opened, "fused with"),
        stats=stats,
        warnings=warnings,
    )


def _in_front(opened: Opened, adapter: Adapter, receiver: Engine, warnings: tuple[str, ...]) -> Context:
    """Stand before the receiver's conversation, behind the one token that every conversation begins with."""
    own, start = receiver.loaded, time.perf_counter()
    first = anchor(own.tokenizer)
    base, _ = receiver.prefixes.find(first)
    if base is None:
        base = receiver.prefill(first)
        receiver.prefixes.add(first, base)
    cache = adapter.decode(opened.codes, base, own.ropes, torch.full((len(first),), -1))
    length = cache.next_position
    return Context(
        cache=cache,
        token_ids=(*first, *(first[-1:] * (length - len(first)))),  # no words stand there
        head=length,
        losses=_losses(opened, "positions adapted from"),
        joining=Joining(drop_sinks=len(first)),
        stats={"adapt_seconds": time.perf_counter() - start, "memory_bytes": float(cache.nbytes - base.nbytes)},
        warnings=warnings,
    )


def _in_turn(opened: Opened, adapter: Adapter, receiver: Engine, warnings: tuple[str, ...]) -> Context:
    """Wait for the receiver's own turn, and change its cache."""
    ropes = receiver.loaded.ropes

    def rewrite(cache: KVCache) -> KVCache:
        return adapter.decode(opened.codes, cache, ropes, torch.full((len(cache),), -1))

    return Context(rewrite=rewrite, losses=_losses(opened, "values adapted to"), warnings=warnings)


def loaded(bundle: Bundle, device: torch.device, dtype: torch.dtype) -> Adapter:
    """A bundle's adapter, ready for inference."""
    return _load(bundle.folder.resolve(), bundle.card.digest, device, dtype)


@lru_cache(maxsize=8)
def _load(folder: Path, _digest: str, device: torch.device, dtype: torch.dtype) -> Adapter:
    """One copy of an adapter's weights for all channels of a process, as long as its bundle is the same."""
    return find_bundle(folder).load().ready(device, dtype)


def _losses(opened: Opened, how: str) -> tuple[str, ...]:
    return (*opened.header.losses, f"{how} the cache of '{opened.header.sender}' ({opened.mark.model})")


def _spans(codes: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Take spans and places out of a payload's tensors; raises ValueError, LookupError where they are none."""
    spans, places = codes.pop(SPANS), codes.pop(PLACES)
    if spans.ndim != 2 or spans.shape[1] != 3 or spans.is_floating_point() or bool((spans[:, 0] < 0).any()):
        raise ValueError("its spans are none")
    if places.ndim != 1 or places.is_floating_point() or bool(((places < 0) | (places >= len(spans))).any()):
        raise ValueError("its places are none")
    return spans, places
