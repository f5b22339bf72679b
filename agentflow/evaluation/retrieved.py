"""Text of a given size: the sentences of a message that share most words with the receiver's task.

The fair rival of any compaction: as many positions (or seconds) spent on plain text, chosen with care (BM25).
"""

from __future__ import annotations

import torch

from agentflow.channels.base import Channel, Context, Message, Task
from agentflow.channels.lexical import relevance
from agentflow.kv.bodies import TextBody, Turn
from agentflow.kv.payload import Header, Payload
from agentflow.models.chat import render
from agentflow.models.engine import Engine
from agentflow.models.sentences import sentences_of


class RetrievedText(Channel):
    """The best sentences of the message, in their order, in at most `positions` tokens of the receiver's model."""

    name = "text"
    task_free = False

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.positions = positions

    def send(self, message: Message, task: Task) -> Payload:
        """Choose sentences for the task; system turns stay and are counted."""
        spoken = [t for t in message.turns if t.role != "system"]
        system = tuple(t for t in message.turns if t.role == "system")
        frame = len(render(task.engine.tokenizer, (*system, Turn("user", "")), reply=False))
        text = best_sentences("\n".join(t.content for t in spoken), task, self.positions - frame)
        body = TextBody((*system, Turn("user", text)) if text else system)
        return Payload(Header(self.name, message.sender, losses=("best sentences only",)), body)

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Read them as the sender's conversation."""
        del receiver
        assert isinstance(payload.body, TextBody)
        return Context(turns=payload.body.turns)


def best_sentences(text: str, task: Task, budget: int) -> str:
    """The sentences of `text` most relevant for the task that fit `budget` tokens, in their order."""
    ids = task.engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    numbers, sentences = sentences_of(task.engine.tokenizer, ids)
    sizes = torch.bincount(numbers[numbers >= 0], minlength=len(sentences))
    kept: set[int] = set()
    for number in relevance(sentences, task.prompt).argsort(descending=True, stable=True).tolist():
        size = int(sizes[number])
        if size <= budget:
            budget -= size
            kept.add(number)
    return "".join(sentences[n] for n in sorted(kept)).strip()
