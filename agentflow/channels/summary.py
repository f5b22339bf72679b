"""Channel `summary`: a model writes down what the receiver needs for its task, and that is the message.

The baseline that most agent frameworks use to keep contexts short. Its price is paid in generated tokens, before the
receiver can begin; they are counted with the receiver's own. What the writing model has computed of the trajectory is
used again: the sender's cache where the weights are the same, so that only the instruction is prefilled.
"""

from __future__ import annotations

import time
from typing import Literal

from pydantic import Field

from agentflow.channels.base import FITS, Channel, ChannelSettings, Compatibility, Context, Message, Task
from agentflow.channels.text import as_note
from agentflow.channels.trajectory import encode
from agentflow.errors import ChannelError
from agentflow.kv.payload import Header, Payload, TextBody, Turn
from agentflow.models.chat import conversation, join, render, tokens_of
from agentflow.models.completions import estimated_tokens
from agentflow.models.engine import Engine
from agentflow.models.requests import Request
from agentflow.models.spec import ModelSpec

INSTRUCTION = (
    "Summarize the text above for somebody who can't see it. Keep every name, number and fact that is needed for the "
    "following task. Don't do the task; write the summary only. The task:"
)


class SummarySettings(ChannelSettings):
    """Settings of `summary`."""

    max_tokens: int = Field(default=96, ge=1, description="the most tokens that the summary may have")
    ratio: float | None = Field(
        default=None, gt=0, le=1, description="instead of max_tokens: a share of the conversation's tokens"
    )
    by: Literal["receiver", "sender"] = Field(
        default="receiver", description="whose model writes; it answers greedily, whatever its agent's temperature"
    )
    instruction: str = Field(
        default=INSTRUCTION, min_length=1, description="what the writer is told; plain text, the task follows it"
    )


class SummaryChannel(Channel):
    """A summary of the conversation for the receiver's task, written by a model, as a note in the prompt."""

    name = "summary"
    Settings = SummarySettings
    settings: SummarySettings
    needs_cache = True
    takes_words = True
    task_free = False
    compresses = True
    sends_text = True

    def check(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """Any pair, but a remote model reads and writes for itself alone."""
        writer, other = (receiver, "sender") if self.settings.by == "receiver" else (sender, "receiver")
        if writer.remote is None:
            return FITS
        return Compatibility(False, f"'{writer.model}' is remote and can't write it; say `by: {other}`", "text")

    def send(self, message: Message, task: Task) -> Payload:
        """Write the summary, on the trajectory's cache where the writer has it.

        Raises:
            ChannelError: there is nothing to sum up, nobody to write, or nothing was written.
            ModelError: trajectory, instruction and summary are more than the writer has positions for.
        """
        if not any(t.content.strip() for t in message.turns if t.role != "system"):
            raise ChannelError(f"'{message.sender}' has said and read nothing, so there is nothing to sum up.")
        engine, s = self._writer(message, task), self.settings
        start = time.perf_counter()
        cache, token_ids, computed = encode(message, engine)
        continued = cache is message.cache
        head = message.head if continued else 0  # nothing stands before what was encoded anew
        tokens = len(token_ids) - head
        asked = conversation("", f"{s.instruction}\n\n{task.prompt}", message.turns)
        joined = join(render(engine.tokenizer, asked, reply=True), cache, token_ids, head)
        limit = s.max_tokens if s.ratio is None else max(1, round(s.ratio * tokens))
        written = engine.generate([Request(joined.suffix, joined.prefix, max_new_tokens=limit)])[0]
        stats = {
            "prefilled": float(computed + written.prefilled),
            "generated": float(len(written.token_ids)),
            "summary_seconds": time.perf_counter() - start,
        }
        losses = [*message.losses] if continued else []
        losses.append(f"summary of {len(written.token_ids)} tokens in place of {tokens}")
        if written.finish == "length":
            losses.append("summary cut at its limit")
        return self._payload(message, task, engine, written.text.strip(), tokens, losses).with_stats(**stats)

    def read(self, payload: Payload) -> Context:
        """Read it at the head of the prompt."""
        return as_note(payload)

    def _writer(self, message: Message, task: Task) -> Engine:
        if self.settings.by == "receiver":
            return task.engine
        if message.engine is None:
            raise ChannelError(
                f"'{message.sender}' runs elsewhere, so it can't write its own summary.", fix="Say `by: receiver`."
            )
        return message.engine

    def _payload(
        self, message: Message, task: Task, engine: Engine, text: str, tokens: int, losses: list[str]
    ) -> Payload:
        if not text:
            raise ChannelError(
                f"'{engine.loaded.spec.model}' wrote an empty summary of '{message.sender}'.",
                fix="Give another `instruction`, let the other side write (`by`), or use the channel 'retrieval'.",
            )
        kept = len(tokens_of(task.receiver.tokenizer, text)) if task.receiver is not None else estimated_tokens(text)
        header = Header(self.name, message.sender, tokens=tokens, kept=kept, losses=tuple(losses))
        return Payload(header, TextBody((Turn("assistant", text),)))
