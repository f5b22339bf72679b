"""Channel `retrieval`: the parts of the sender's text that share most words with the receiver's task.

What anybody would try before sending a cache: cut the trajectory into chunks, rank them for the task by BM25
(Robertson and Zaragoza 2009) and pass the best ones in their order. Comparisons use it as the fair rival of any
compaction: as many positions (or seconds) spent on plain text, chosen with care.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from agentflow.channels.base import Channel, ChannelSettings, Context, Message, Task
from agentflow.channels.chunks import Chunk, chunks_of, joined, ranked, that_fit
from agentflow.channels.text import text_of
from agentflow.kv.payload import Header, Payload, TextBody, Turn
from agentflow.models.chat import render
from agentflow.models.completions import estimated_tokens, told
from agentflow.models.engine import Engine


class RetrievalSettings(ChannelSettings):
    """Settings of `retrieval`."""

    chunk: Chunk = Field(default="sentence", description="what is ranked: sentences, lines of text, or runs of words")
    chunk_words: int = Field(default=64, ge=1, description="words: how many in a chunk")
    limit: Literal["ratio", "max_tokens", "top_k"] = Field(default="ratio", description="how the room is decided")
    ratio: float = Field(
        default=0.3, gt=0, le=1, description="ratio: the share of the conversation's tokens, in the receiver's tokens"
    )
    least: int = Field(default=64, ge=0, description="ratio: at least so many tokens: short messages gain nothing")
    max_tokens: int = Field(
        default=256, ge=0, description="max_tokens: so many of the receiver's tokens; instructions are counted and stay"
    )
    top_k: int = Field(default=8, ge=1, description="top_k: so many chunks")


class RetrievalChannel(Channel):
    """The sentences (or other chunks) of the conversation that matter most for the receiver's task, as text."""

    name = "retrieval"
    Settings = RetrievalSettings
    settings: RetrievalSettings
    task_free = False
    compresses = True
    sends_text = True

    def send(self, message: Message, task: Task) -> Payload:
        """Choose chunks for the task; system turns stay, and are counted with the frame of the conversation.

        Where these alone are more than the limit, nothing else is passed.
        """
        s, engine = self.settings, task.receiver
        system = tuple(t for t in message.turns if t.role == "system")
        spoken = "\n".join(t.content for t in message.turns if t.role != "system")
        chunks = chunks_of(spoken, s.chunk, s.chunk_words)
        order = ranked(chunks, task.prompt)
        whole = _tokens(engine, message.turns)
        if s.limit == "top_k":
            turns, taken = _told(system, chunks, order[: s.top_k]), min(s.top_k, len(order))
        else:
            room = max(s.least, round(s.ratio * whole)) if s.limit == "ratio" else s.max_tokens
            turns, taken = _within(engine, system, chunks, order, room)
        passed = _tokens(engine, turns) if taken else 0
        kind = "chunks" if s.chunk == "words" else f"{s.chunk}s"
        header = Header(
            self.name,
            message.sender,
            tokens=whole,
            kept=passed,
            losses=(f"{taken} of {len(chunks)} {kind} passed",),
        )
        stats = {"chunks": float(len(chunks)), "chunks_passed": float(taken), "tokens_passed": float(passed)}
        return Payload(header, TextBody(turns), stats)

    def read(self, payload: Payload) -> Context:
        """Read them as the sender's conversation."""
        return Context(turns=text_of(payload))


def _within(
    engine: Engine | None, system: tuple[Turn, ...], chunks: Sequence[str], order: Sequence[int], room: int
) -> tuple[tuple[Turn, ...], int]:
    """The best chunks that fit, and how many there are."""
    sizes = _sizes(engine, chunks) if chunks else []
    taken = that_fit(order, sizes, room - _tokens(engine, (*system, Turn("user", ""))))
    turns = _told(system, chunks, taken)
    while taken and _tokens(engine, turns) > room:  # at a seam two chunks may be more tokens than each alone
        taken.pop()
        turns = _told(system, chunks, taken)
    return turns, len(taken)


def _told(system: tuple[Turn, ...], chunks: Sequence[str], taken: Sequence[int]) -> tuple[Turn, ...]:
    """The chunks in their order, as one turn of the user behind the instructions."""
    text = joined(chunks, taken)
    return (*system, Turn("user", text)) if text else system


def _tokens(engine: Engine | None, turns: Sequence[Turn]) -> int:
    """How many of the receiver's tokens these are; about so many, where it is remote."""
    if engine is None or not turns:
        return told(turns)
    return len(render(engine.tokenizer, turns, reply=False))


def _sizes(engine: Engine | None, chunks: Sequence[str]) -> list[int]:
    if engine is None:
        return [estimated_tokens(chunk) for chunk in chunks]
    return [len(ids) for ids in engine.tokenizer(list(chunks), add_special_tokens=False)["input_ids"]]
