"""What all channels over a trained adapter share: finding the bundle of a pair, sending codes, receiving them.

The sender's model and the receiver's see the same conversation. What travels is its text, what the adapter makes of the
sender's cache, and where each of the sender's tokens stands in the text. The receiver needs the bundle and its own
model, never the sender's.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from agentflow.adapters.base import Adapter
from agentflow.adapters.bundle import Bundle, bundle_for, find_bundle
from agentflow.channels.base import FITS, Channel, ChannelSettings, Compatibility, Context, Message, Task
from agentflow.channels.trajectory import read
from agentflow.errors import AdapterError, ChannelError, PayloadError
from agentflow.kv.bodies import CodesBody
from agentflow.kv.geometry import Geometry
from agentflow.kv.payload import Fingerprint, Header, Payload, Turn, turns_of
from agentflow.models.alignment import align, spans_of
from agentflow.models.engine import Engine
from agentflow.models.loading import local_geometry
from agentflow.models.spec import ModelSpec

SPANS, PLACES = "spans", "places"
"""Tensors beside an adapter's codes: where each of the sender's tokens stands, and which of them the codes are of."""


class AdapterSettings(ChannelSettings):
    """Settings of a channel over an adapter."""

    bundle: str = Field(
        default="auto", description="a bundle's folder or name; auto: the one that was made for this pair of models"
    )


_received: weakref.WeakKeyDictionary[Payload, dict[Hashable, Context]] = weakref.WeakKeyDictionary()


class AdapterChannel(Channel):
    """A channel whose messages an adapter writes into the receiver's own cache of the same conversation."""

    adapter: ClassVar[str]
    """The registered name of the adapter's class."""
    Settings = AdapterSettings
    settings: AdapterSettings
    needs_cache = True
    trains = True

    def check(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """Whether there is a bundle for this pair, by its card and the models' configurations."""
        try:
            bundle = self._bundle(sender, receiver)
        except AdapterError as error:
            return Compatibility(False, error.what[:1].lower() + error.what[1:].rstrip("."), "text")
        for which, end, spec in (("sender", bundle.card.sender, sender), ("receiver", bundle.card.receiver, receiver)):
            found = None if end.same_source(spec) else local_geometry(spec)
            made = f"the bundle '{bundle.name}' was made for the {which} '{end.model}'"
            if found is not None and found != Geometry(end.geometry):
                return Compatibility(
                    False, f"{made} of {Geometry(end.geometry)}, and '{spec.model}' has {found}", "text"
                )
            if end.source and not end.same_source(spec):
                return Compatibility(
                    False, f"{made} ({end.source}), and this is '{spec.model}' ({spec.source})", "text"
                )
        return FITS

    def mark(self, sender: ModelSpec, receiver: ModelSpec) -> str:
        """The digest of the bundle's weights."""
        return self._bundle(sender, receiver).card.digest

    def send(self, message: Message, task: Task) -> Payload:
        """Encode the sender's cache; the receiver's own turn plays no part in it.

        Raises:
            ChannelError: the sender kept no cache.
            AdapterError: there is no bundle for the pair, or it is another's.
        """
        if message.cache is None or message.engine is None:
            raise ChannelError(f"'{message.sender}' kept no cache, so there is none to encode.")
        sender = message.engine.loaded
        bundle = self._bundle(sender.spec, task.engine.loaded.spec)
        warnings = bundle.card.sender.require(
            "sender", sender.fingerprint, same_source=bundle.card.sender.same_source(sender.spec)
        )
        cache, head = message.cache, message.head
        if head:  # what other conversations left before this one is not in its text
            cache = cache.select(cache.positions >= head)
        places = (cache.positions - head).cpu()
        spans = spans_of(sender.tokenizer, message.token_ids[head : cache.next_position], message.turns)
        losses = [*message.losses]
        if head:
            losses.append(f"{head} positions of other conversations left out")
        if cache.bias is not None:
            losses.append("biases of the sender's cache left out")
        codes = _loaded(bundle, task.engine.loaded.device, task.engine.loaded.dtype).encode(cache, sender.ropes)
        header = Header(self.name, message.sender, sender.fingerprint, len(spans), len(places), tuple(losses))
        settings = {"turns": [asdict(turn) for turn in message.turns], "source": list(sender.spec.identity)}
        beside = {SPANS: spans.to(torch.int32), PLACES: places.to(torch.int32)}
        body = CodesBody({**codes, **beside}, settings)
        return Payload(header, body, warnings=warnings)

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Read the conversation with the receiver's model, and write the message into its cache of it.

        A payload that several receivers of one model get is read and written once.

        Raises:
            PayloadError: it holds something else than this channel sends.
            AdapterError: it is of another pair of models than the bundle.
        """
        opened = _Opened.of(payload, self.name)
        bundle = self._bundle(opened.sender, receiver.loaded.spec)
        own = receiver.loaded
        known = _received.setdefault(payload, {})
        key = bundle.card.digest, own.fingerprint, own.device, own.dtype
        if key not in known:
            known[key] = _written(payload.header, opened, bundle, receiver)
        return known[key]

    def _bundle(self, sender: ModelSpec, receiver: ModelSpec) -> Bundle:
        if self.settings.bundle != "auto":
            bundle = find_bundle(self.settings.bundle)
            if bundle.card.adapter != self.adapter:
                raise AdapterError(
                    f"The bundle '{bundle.name}' holds a '{bundle.card.adapter}', and this channel needs a "
                    f"'{self.adapter}'."
                )
            return bundle
        found = bundle_for(self.adapter, sender, receiver)
        if found is None:
            raise AdapterError(
                f"There is no bundle of '{self.adapter}' from '{sender.model}' to '{receiver.model}'.",
                fix="Train one (agentflow train), or name a folder with `bundle:`.",
            )
        return found


@dataclass(frozen=True, eq=False)
class _Opened:
    """What a payload holds: an adapter's codes, where they belong in which conversation, and whose they are."""

    codes: dict[str, Tensor]
    spans: Tensor
    places: Tensor
    turns: tuple[Turn, ...]
    sender: ModelSpec
    mark: Fingerprint

    @classmethod
    def of(cls, payload: Payload, channel: str) -> _Opened:
        """Open a payload; another channel's, or a damaged one, is refused with a `PayloadError`."""
        body, header = payload.body, payload.header
        if header.channel != channel or not isinstance(body, CodesBody) or header.fingerprint is None:
            raise PayloadError(
                f"The payload from '{header.sender}' was sent over '{header.channel}', not '{channel}'.",
                fix="Receive it with the channel that sent it.",
            )
        codes = dict(body.tensors)
        try:
            spans, places = codes.pop(SPANS), codes.pop(PLACES)
            if spans.ndim != 2 or spans.shape[1] != 3 or spans.is_floating_point() or bool((spans[:, 0] < 0).any()):
                raise ValueError("its spans are none")
            if places.ndim != 1 or places.is_floating_point() or bool(((places < 0) | (places >= len(spans))).any()):
                raise ValueError("its places are none")
            source, revision = body.settings["source"]
            sender = ModelSpec(model=header.fingerprint.model, source=source, revision=revision)
            turns = turns_of(body.settings["turns"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"The payload from '{header.sender}' can't be used: {error}."
            raise PayloadError(what, fix="Send it again.") from None
        return cls(codes, spans.to(torch.int64), places.to(torch.int64), turns, sender, header.fingerprint)

    def partners(self, own: Tensor) -> Tensor:
        """For each of the receiver's tokens, of the spans `own`, the number of the code of the same text, or -1."""
        numbers = torch.full((len(self.spans) + 1,), -1)
        numbers[self.places] = torch.arange(len(self.places))
        return numbers[align(own, self.spans)]  # the last number is for -1: no partner


def _written(header: Header, opened: _Opened, bundle: Bundle, receiver: Engine) -> Context:
    """Read the conversation with the receiver's model, and write the codes into its cache of it."""
    own, card = receiver.loaded, bundle.card
    warnings = (
        *card.sender.require("sender", opened.mark, same_source=card.sender.same_source(opened.sender)),
        *card.receiver.require("receiver", own.fingerprint, same_source=card.receiver.same_source(own.spec)),
    )
    start = time.perf_counter()
    base, token_ids, computed = read(opened.turns, receiver)
    read_at = time.perf_counter()
    partners = opened.partners(spans_of(own.tokenizer, token_ids, opened.turns))
    cache = _loaded(bundle, own.device, own.dtype).decode(opened.codes, base, own.ropes, partners)
    stats = {
        "own_tokens": float(computed),
        "own_seconds": read_at - start,
        "fuse_seconds": time.perf_counter() - read_at,
        "aligned_share": float((partners >= 0).float().mean()),
    }
    losses = (*header.losses, f"fused with the cache of '{header.sender}' ({opened.mark.model})")
    return Context(
        turns=opened.turns,
        cache=cache,
        base=base,
        token_ids=token_ids,
        losses=losses,
        stats=stats,
        warnings=warnings,
    )


def _loaded(bundle: Bundle, device: torch.device, dtype: torch.dtype) -> Adapter:
    return _load(bundle.folder.resolve(), bundle.card.digest, device, dtype)


@lru_cache(maxsize=4)
def _load(folder: Path, _digest: str, device: torch.device, dtype: torch.dtype) -> Adapter:
    """One copy of an adapter's weights for all channels of a process, as long as its bundle is the same."""
    return find_bundle(folder).load().ready(device, dtype)
