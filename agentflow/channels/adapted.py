"""What all channels over a trained adapter share: finding the bundle of a pair, sending codes, receiving them.

What travels is what the adapter makes of the sender's cache; where both models see the same conversation, also its
text, and where each of the sender's tokens stands in it. The receiver needs the bundle and its own model, never the
sender's.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from agentflow.adapters.bundle import Bundle, bundle_for, find_bundle
from agentflow.channels.base import FITS, Channel, ChannelSettings, Compatibility, Context, Message, Task
from agentflow.channels.placing import Opened, Packed, beside, loaded, placed
from agentflow.channels.trajectory import read
from agentflow.errors import AdapterError, ChannelError
from agentflow.kv.bodies import CodesBody
from agentflow.kv.geometry import Geometry
from agentflow.kv.payload import Header, Payload, Turn
from agentflow.models.engine import Engine
from agentflow.models.loading import local_geometry
from agentflow.models.spec import ModelSpec


class AdapterSettings(ChannelSettings):
    """Settings of a channel over an adapter."""

    bundle: str = Field(
        default="auto", description="a bundle's folder or name; auto: the one that was made for this pair of models"
    )


_received: weakref.WeakKeyDictionary[Payload, dict[Hashable, Context]] = weakref.WeakKeyDictionary()


class AdapterChannel(Channel):
    """A channel whose messages a trained adapter reads from the sender's cache and writes into the receiver's."""

    adapter: ClassVar[str]
    """The registered name of the adapter's class; a property where a setting chooses it."""
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
        head = message.head
        cache = message.cache.since(head)  # what other conversations left before this one is not of this message
        losses = [*message.losses]
        if head:
            losses.append(f"{head} positions of other conversations left out")
        if cache.bias is not None:
            losses.append("biases of the sender's cache left out")
        adapter = loaded(bundle, task.engine.loaded.device, task.engine.loaded.dtype)
        codes = self.packed(adapter.encode(cache, sender.ropes))
        settings: dict[str, Any] = {"source": list(sender.spec.identity), **codes.settings}
        tensors, kept = dict(codes.tensors), len(cache)
        if adapter.place == "text":
            tensors |= beside(message, cache)
            settings["turns"] = [asdict(turn) for turn in message.turns]
        else:
            kept = min(kept, *(t.shape[0] for t in tensors.values()))
        tokens = cache.next_position - head
        header = Header(self.name, message.sender, sender.fingerprint, tokens, kept, (*losses, *codes.losses))
        return Payload(header, CodesBody(tensors, settings), warnings=warnings)

    def packed(self, codes: Mapping[str, Tensor]) -> Packed:
        """The codes as they travel."""
        return Packed(dict(codes))

    def unpacked(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
        """The codes as `packed` was given them; raises `PayloadError` where they are none."""
        del settings
        return dict(tensors)

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Put the message where the receiver finds it.

        A payload that several receivers of one model get is read and written once.

        Raises:
            PayloadError: it holds something else than this channel sends.
            AdapterError: it is of another pair of models than the bundle.
        """
        opened = Opened.of(payload, self.name, self.unpacked)
        bundle = self._bundle(opened.sender, receiver.loaded.spec)
        own = receiver.loaded
        known = _received.setdefault(payload, {})
        key = bundle.card.digest, own.fingerprint, own.device, own.dtype
        if key not in known:
            known[key] = placed(opened, bundle, receiver)
        return known[key]

    def read_along(self, turns: Sequence[Turn], sender: ModelSpec, receiver: Engine) -> None:
        """Read the conversation, where the adapter's messages are written into the receiver's own cache of it."""
        bundle, own = self._bundle(sender, receiver.loaded.spec), receiver.loaded
        if loaded(bundle, own.device, own.dtype).place == "text":
            read(turns, receiver)

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
