"""What a channel is: a way for one agent's trajectory to reach another agent.

A channel is one class in one file with one registration (entry-point group `agentflow.channels`). It is asked three
things: whether it fits a pair of models (without their weights), to turn a sender's message into a payload, and to
turn a payload into something the receiver can stand on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from agentflow.errors import ChannelError
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Payload, Turn
from agentflow.models.engine import Engine
from agentflow.models.spec import ModelSpec


class ChannelSettings(BaseModel):
    """Settings of a channel, as an edge gives them in YAML; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Compatibility:
    """Whether a channel fits a pair of models, and why not."""

    fits: bool
    reason: str = ""
    instead: str = ""


FITS = Compatibility(True)


@dataclass(frozen=True, eq=False)
class Message:
    """What a sender has to say: its trajectory, in words and, where it kept one, as a cache.

    Attributes:
        sender: the node's name among those written beside it: in a loop the same in every round.
        turns: its conversation, its answer last (where it spoke).
        text: the answer alone.
        token_ids: the tokens of `cache`.
        cache: of prompt and answer; None when no channel asked for it.
        head: where this conversation begins in the cache, behind others that were joined before it.
        losses: what of the cache is not as it would have been computed, in words.
        engine: the engine it ran on; None for a remote model.
    """

    sender: str
    turns: tuple[Turn, ...]
    text: str
    token_ids: tuple[int, ...] = ()
    cache: KVCache | None = None
    engine: Engine | None = None
    head: int = 0
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Task:
    """What the receiver is about to do with a message.

    Attributes:
        prompt: its own prompt, rendered.
        system: its instructions.
        receiver: the engine it will run on; None for a remote model.
    """

    prompt: str
    system: str
    receiver: Engine | None

    @property
    def engine(self) -> Engine:
        """The receiver's engine, for channels that are never asked to reach a remote model (see `Channel.between`)."""
        if self.receiver is None:
            raise ChannelError("The receiver is remote: there is no engine of it here.", fix="Use the channel 'text'.")
        return self.receiver


@dataclass(frozen=True)
class Joining:
    """How several caches become one (fan-in).

    Attributes:
        drop_sinks: leading positions left out of every cache but the first.
        recompute: share of the positions of every cache but the first that is computed anew, in full context.
    """

    drop_sinks: int = 0
    recompute: float = 0.0


@dataclass(frozen=True, eq=False)
class Context:
    """What a receiver stands on.

    Attributes:
        turns: a conversation to continue; may be empty.
        note: text for the head of the receiver's own prompt; may be empty.
        cache: attention state of `token_ids`, which from `head` on are a rendering of `turns`. Without turns it stands
            before the receiver's conversation: `head` is where it ends.
        rewrite: what becomes of the receiver's cache of its own turn, up to where it answers, once that is computed.
        base: where something was fused into the cache, the cache without it: what several senders fuse into the same
            tokens is added up.
        joining: how to join this cache with others, when several arrive.
        stats: figures of the injection (seconds, counts).
        warnings: what somebody should know about the injection, in words; shown while it runs, and stored.
    """

    turns: tuple[Turn, ...] = ()
    note: str = ""
    cache: KVCache | None = None
    base: KVCache | None = None
    rewrite: Callable[[KVCache], KVCache] | None = None
    token_ids: tuple[int, ...] = ()
    head: int = 0
    losses: tuple[str, ...] = ()
    joining: Joining = field(default_factory=Joining)
    stats: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Channel(ABC):
    """One way across an edge. Instances hold settings only and may be shared between threads."""

    name: ClassVar[str]
    Settings: ClassVar[type[ChannelSettings]] = ChannelSettings
    needs_cache: ClassVar[bool] = False
    """Whether the sender must keep its cache."""
    takes_words: ClassVar[bool] = False
    """Whether a sender that has no cache will do all the same, because its words can be read in its place."""
    task_free: ClassVar[bool] = True
    """Whether the payload is the same for every receiver, so that it is made once."""
    compresses: ClassVar[bool] = False
    """Whether it sends less than the text holds; then text of equal bytes is a control."""
    trains: ClassVar[bool] = False
    """Whether it needs a trained bundle; those that don't appear in comparisons by default."""
    sends_text: ClassVar[bool] = False
    """Whether what travels is text, whatever it was made from; then there is no cache that zeros could stand in for."""
    rank: ClassVar[int | None] = None
    """When `channel: auto` tries it, low numbers first; None: only where it is named."""

    def __init__(self, settings: ChannelSettings | None = None) -> None:
        self.settings = settings if settings is not None else self.Settings()

    def check(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """Whether messages of `sender` can reach `receiver`; decided from names and configurations alone."""
        del sender, receiver
        return FITS

    def mark(self, sender: ModelSpec, receiver: ModelSpec) -> str:
        """A digest of what messages depend on besides settings and sender; a stored answer is void when it changes."""
        del sender, receiver
        return ""

    def between(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """`check`, behind what holds for every channel: a remote model gives and takes words alone."""
        if sender.remote is not None and self.needs_cache and not self.takes_words:
            return Compatibility(False, f"'{sender.model}' is remote: it gives its words, and no cache", "text")
        if receiver.remote is not None and not self.sends_text:
            return Compatibility(False, f"'{receiver.model}' is remote: it takes words, and no cache", "text")
        return self.check(sender, receiver)

    @abstractmethod
    def send(self, message: Message, task: Task) -> Payload:
        """Turn a message into a payload for a receiver about to do `task`."""

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Turn a payload into what the receiver stands on. Channels that send text may leave it to `read`.

        Raises:
            PayloadError: the payload does not fit the receiver.
        """
        del receiver
        return self.read(payload)

    def read_along(self, turns: Sequence[Turn], sender: ModelSpec, receiver: Engine) -> None:
        """Compute what receiving will need of a conversation whose last answer is not there yet.

        Called while the sender answers, on another thread; what is computed is left in the receiver's prefix store.
        Channels whose receivers read nothing themselves do nothing.
        """
        del turns, sender, receiver

    def read(self, payload: Payload) -> Context:
        """Turn a payload into what a receiver is told that takes words alone, as a remote model does.

        Raises:
            ChannelError: the channel has no words for it.
        """
        what = f"What '{payload.header.sender}' sent over '{self.name}' can't be told in words alone."
        raise ChannelError(what, fix="Use the channel 'text'.")
