"""Questions about a conversation, as an adapter is trained on them: tokens of two models, and which belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentflow.adapters.base import Place
from agentflow.adapters.recipe import DataRecipe
from agentflow.errors import DataError
from agentflow.models.alignment import align, spans_of
from agentflow.models.chat import anchor, conversation, render, reply_frame, shared_length
from agentflow.models.engine import Engine
from agentflow.tasks.base import Item
from agentflow.tasks.draws import Draws
from agentflow.tasks.files import read_items
from agentflow.tasks.records import Record
from agentflow.tasks.registry import make_task

TRAINED = 1 << 40
"""Seeds of generated items to train on begin here, so that no comparison meets them again."""


@dataclass(frozen=True)
class Sample:
    """What the sender reads, what the receiver is asked about it, and the right answer.

    Attributes:
        own_context: what the receiver reads for itself, before the question, where their contexts differ.
        system, own_system: the sender's instructions, and the receiver's.
    """

    context: str
    question: str
    answer: str
    own_context: str = ""
    system: str = ""
    own_system: str = ""

    @property
    def asked(self) -> str:
        """The receiver's prompt."""
        return f"{self.own_context}\n\n{self.question}" if self.own_context else self.question


@dataclass(frozen=True, eq=False)
class Example:
    """A sample in tokens.

    Attributes:
        sender: of the conversation, in the sender's tokens.
        own: what the receiver has computed when the message comes (see `Place`): the same conversation, as far as its
            own turn leaves it as it is; or the first token of any; or its own turn, up to where it answers.
        partners: `(len(own),)` the sender's token for each of them, or -1.
        asked: what it computes behind that, up to where it answers.
        answer: the right answer, with the mark of its end.
        taught: where the receiver reads the text itself: the conversation, and its turn behind that.
    """

    sender: tuple[int, ...]
    own: tuple[int, ...]
    partners: Tensor
    asked: tuple[int, ...]
    answer: tuple[int, ...]
    taught: tuple[tuple[int, ...], tuple[int, ...]]


def load_samples(data: DataRecipe, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on, and those that are held out.

    Raises:
        UserError: a file that is missing, damaged or too short, or settings that the task doesn't have.
    """
    if data.task == "private_facts":
        task = make_task("private_facts", data.settings)
        first = TRAINED + 2 * seed
        made = [task.items(data=None, limit=n, seed=s) for n, s in ((data.train, first), (data.held_out, first + 1))]
        return samples_of(made[0], data), samples_of(made[1], data)
    assert data.file is not None
    if data.task == "jsonl":
        items = read_items(data.file, _read_line)
    else:
        items = make_task(data.task, data.settings).items(data=data.file, limit=data.held_out + data.train, seed=seed)
    if len(items) <= data.held_out:
        raise DataError(
            f"{len(items)} items are too few: {data.held_out} of them are held out.",
            where=str(data.file),
            fix="Give more items, or hold fewer out (data.held_out).",
        )
    return samples_of(items[data.held_out :][: data.train], data), samples_of(items[: data.held_out], data)


def make_examples(samples: Sequence[Sample], sender: Engine, receiver: Engine, place: Place = "text") -> list[Example]:
    """Render and align samples for a pair of models, and an adapter whose messages are found at `place`."""
    return [_example(sample, sender.tokenizer, receiver.tokenizer, place) for sample in samples]


def _example(sample: Sample, sender: Any, receiver: Any, place: Place) -> Example:
    turns = conversation(sample.system, sample.context)
    theirs = tuple(render(sender, turns, reply=False))
    rendered = render(receiver, turns, reply=False)
    whole = tuple(render(receiver, conversation(sample.own_system, sample.asked, turns), reply=True))
    shared = shared_length(rendered, whole[:-1])
    taught = whole[:shared], whole[shared:]
    if place == "text":
        own, asked = taught
        partners = align(spans_of(receiver, rendered, turns), spans_of(sender, theirs, turns))[:shared]
    else:
        before, opening = reply_frame(receiver, conversation(sample.own_system, sample.asked))
        own, asked = (before, opening) if place == "turn" else (anchor(receiver), (*before, *opening))
        partners = torch.full((len(own),), -1)
    answer = receiver(sample.answer, add_special_tokens=False)["input_ids"]
    end = [receiver.eos_token_id] if receiver.eos_token_id is not None else []
    return Example(theirs, own, partners, asked, (*answer, *end), taught)


def samples_of(items: Sequence[Item], data: DataRecipe) -> list[Sample]:
    """A task's items as samples, one a question, in the words of a recipe's data."""
    found = []
    for number, item in enumerate(items):
        drawn = Draws(f"context:{number}")
        system, own_system = (_one_of(told, drawn) for told in (data.sender_system, data.receiver_system))
        split = drawn.below(1000) < round(1000 * data.split)
        for context, own, question, answer in _texts(item, split):
            found.append(Sample(data.read.replace("{context}", context), question, answer, own, system, own_system))
    return found


def _divided(facts: Sequence[str], answer: str) -> tuple[list[str], list[str]]:
    """Every second fact, one that has the answer among them, and the others: what the two ends of an edge may know."""
    wanted = next((n for n, fact in enumerate(facts) if answer in fact), 0)
    return list(facts[wanted % 2 :: 2]), list(facts[1 - wanted % 2 :: 2])


def _texts(item: Item, split: bool) -> Iterator[tuple[str, str, str, str]]:
    """For each question what the sender reads, what the receiver reads itself, the question, and the answer."""
    given = item.inputs
    if "facts" in given:
        for question, (answer, *_) in zip(given["questions"], item.answers, strict=True):
            theirs, own = _divided(given["facts"], answer) if split else (given["facts"], ())
            yield " ".join(theirs), " ".join(own), question, answer
    elif "documents" in given:
        read_itself = _listed(given.get("own_documents", ()))
        yield _listed(given["documents"]), read_itself, given["question"], item.answers[0][0]
    else:
        yield given["context"], given["own_context"], given["question"], item.answers[0][0]


def _one_of(told: str | Sequence[str], drawn: Draws) -> str:
    return told if isinstance(told, str) else drawn.choice(told)


def _listed(documents: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(f"{d['title']}: {d['text']}" for d in documents)


def _read_line(record: Record) -> Item:
    inputs = {name: record.text(name) for name in ("context", "question")}
    own = record.text("own_context") if "own_context" in record.values else ""
    return Item(record.where, {**inputs, "own_context": own}, ((record.text("answer"),),))
