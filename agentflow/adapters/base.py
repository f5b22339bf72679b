"""What an adapter is: a trained map from a sender's cache to a receiver's, for one pair of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from agentflow.errors import AdapterError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.rope import Rope
from agentflow.plugins import load_plugin
from agentflow.settings import checked

GROUP = "agentflow.adapters"

Ropes = Sequence[Rope | None]
"""A model's rotary embeddings, one a layer."""

Place = Literal["text", "front", "turn"]
"""Where a receiver finds the message. text: in its own cache of the sender's text, which it reads as well; front: in
positions of their own, before its conversation; turn: in its cache of its own turn."""


class AdapterArguments(BaseModel):
    """What an adapter is built from besides the shapes of its two models; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, eq=False)
class Layers:
    """Keys and values layer by layer, each `(..., kv_heads, T, dim)`; leading dimensions are a batch's."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    @classmethod
    def of(cls, cache: KVCache) -> Layers:
        """Those of a cache."""
        return cls(cache.keys, cache.values)


def flat(x: Tensor) -> Tensor:
    """`(..., heads, T, dim)` as `(..., T, heads * dim)`."""
    return x.transpose(-3, -2).flatten(-2)


class Adapter(nn.Module, ABC):
    """Turns what a sender computed into what a receiver can stand on.

    At initialisation, in evaluation mode, every adapter leaves the receiver's cache as it is.

    Args:
        sender, receiver: shapes of the two models' caches; no weights are needed.
        arguments: of the class's `Arguments`.
    """

    name: ClassVar[str]
    Arguments: ClassVar[type[AdapterArguments]]
    place: ClassVar[Place] = "text"
    temperature: float
    """Of what is drawn while training; the trainer lowers it."""

    def __init__(self, sender: Geometry, receiver: Geometry, arguments: AdapterArguments) -> None:
        super().__init__()
        self.sender, self.receiver = sender, receiver
        self.arguments = arguments
        self.temperature = 1.0

    def require_sender(self, cache: KVCache) -> None:
        """Refuse another model's cache; raises `AdapterError`."""
        if cache.geometry != self.sender:
            raise AdapterError(f"A cache of {cache.geometry} is not of this adapter's sender ({self.sender}).")

    @abstractmethod
    def encode(self, cache: KVCache, ropes: Ropes) -> dict[str, Tensor]:
        """What travels of the sender's cache, as named tensors; `ropes` are the sender's."""

    @abstractmethod
    def decode(self, codes: Mapping[str, Tensor], cache: KVCache, ropes: Ropes, partners: Tensor) -> KVCache:
        """The receiver's cache with the message in it.

        Args:
            codes: what `encode` gave, at the other end.
            cache: what the receiver computed: of the same text, of the beginning of its conversation, or of its own
                turn, as `place` says; it stays as it is.
            ropes: the receiver's.
            partners: `(T,)` for each position of `cache` the number of the sender's position of the same text, -1 for
                none; all of them -1 where the receiver doesn't read that text.

        Raises:
            AdapterError: the codes are not of this adapter's sender.
        """

    def forward(
        self, theirs: Sequence[KVCache], own: Sequence[KVCache], ropes: tuple[Ropes, Ropes], partners: Sequence[Tensor]
    ) -> list[KVCache]:
        """A batch of messages from end to end, with gradients: each receiver's cache with its message in it.

        Args:
            theirs, own: the senders' and the receivers' caches, one a message.
            ropes: the sender's and the receiver's.
            partners: as in `decode`, one a message.
        """
        rows = zip(theirs, own, partners, strict=True)
        return [self.decode(self.encode(a, ropes[0]), b, ropes[1], at) for a, b, at in rows]

    def likeness(
        self, theirs: Sequence[KVCache], own: Sequence[KVCache], taught: Sequence[KVCache], ropes: tuple[Ropes, Ropes]
    ) -> Tensor:
        """How much each message looks like each text `(messages, texts)`, for a contrastive loss.

        Args:
            taught: the receiver's caches where it has read the texts itself.

        Raises:
            AdapterError: this adapter has no such measure.
        """
        del theirs, own, taught, ropes
        raise AdapterError(
            f"'{self.name}' has no contrastive loss.", fix="Leave `losses.contrastive` out; 'lcf_delta' has one."
        )

    @property
    def parameter_count(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.parameters())

    def ready(self, device: torch.device, dtype: torch.dtype) -> Self:
        """This adapter for inference beside a receiver."""
        return self.to(device=device, dtype=dtype).eval().requires_grad_(False)


def get_adapter(name: str) -> type[Adapter]:
    """The adapter class of that name; `AdapterError` with the closest name when there is none."""
    return load_plugin(GROUP, name, Adapter, error=AdapterError)  # type: ignore[type-abstract]  # only its subclasses are made


def make_adapter(
    name: str, sender: Geometry, receiver: Geometry, arguments: Mapping[str, Any] | None = None, *, meta: bool = False
) -> Adapter:
    """A new adapter of that class for a pair of models.

    Args:
        meta: shapes only, without memory: to count parameters, or to be filled from a file.

    Raises:
        AdapterError: no such class, or arguments that are wrong.
    """
    cls = get_adapter(name)
    chosen = checked(cls.Arguments, arguments or {}, error=AdapterError, where=f"adapter {name}")
    with torch.device("meta" if meta else "cpu"):
        return cls(sender, receiver, chosen)
