"""Channel `text`: the sender's words in the receiver's prompt. The baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from agentflow.channels.base import Channel, ChannelSettings, Context, Message, Task
from agentflow.errors import PayloadError
from agentflow.kv.payload import Header, Payload, TextBody, Turn


class TextSettings(ChannelSettings):
    """Settings of `text`."""

    scope: Literal["trajectory", "answer"] = Field(
        default="trajectory", description="the whole conversation of the sender, or its last answer only"
    )
    max_bytes: int | None = Field(
        default=None,
        ge=0,
        description="cut the text to so many bytes; instructions (system turns) stay whole and are counted",
    )


class TextChannel(Channel):
    """The sender's trajectory, or its answer, as text; the receiver reads all of it again."""

    name = "text"
    Settings = TextSettings
    settings: TextSettings
    sends_text = True
    rank = 90

    def send(self, message: Message, task: Task) -> Payload:
        """Put the turns (or the answer as one assistant turn) into a text payload."""
        del task
        whole = self.settings.scope == "trajectory"
        turns = message.turns if whole else (Turn("assistant", message.text),)
        losses: tuple[str, ...] = ()
        if self.settings.max_bytes is not None:
            turns = cut(turns, self.settings.max_bytes)
            losses = (f"text cut to {self.settings.max_bytes} bytes",)
        return Payload(Header(self.name, message.sender, losses=losses), TextBody(turns))

    def read(self, payload: Payload) -> Context:
        """Continue the conversation, or read the answer at the head of the prompt."""
        return Context(turns=text_of(payload)) if self.settings.scope == "trajectory" else as_note(payload)


def text_of(payload: Payload) -> tuple[Turn, ...]:
    """The turns of a payload in words.

    Raises:
        PayloadError: it holds something else.
    """
    if not isinstance(payload.body, TextBody):
        raise PayloadError(
            f"The payload from '{payload.header.sender}' holds a {type(payload.body).__name__}, not text.",
            fix="Receive it with the channel that sent it.",
        )
    return payload.body.turns


def as_note(payload: Payload) -> Context:
    """A payload in words as a note at the head of the receiver's prompt."""
    said = "\n\n".join(t.content for t in text_of(payload))
    return Context(note=f"Message from {payload.header.sender}:\n{said}")


def cut(turns: Sequence[Turn], max_bytes: int) -> tuple[Turn, ...]:
    """The beginning of a conversation in so many UTF-8 bytes; system turns stay, even where they alone are more."""
    told = sum(len(turn.content.encode()) for turn in turns if turn.role == "system")
    left, kept = max(0, max_bytes - told), []
    for turn in turns:
        if turn.role == "system":
            kept.append(turn)
            continue
        part = turn.content.encode()[:left].decode(errors="ignore")
        left -= len(part.encode())
        if part:
            kept.append(Turn(turn.role, part))
    return tuple(kept)
