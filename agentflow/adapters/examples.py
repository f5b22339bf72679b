"""Questions about a conversation, as an adapter is trained on them: tokens of two models, and which belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agentflow.adapters.recipe import DataRecipe
from agentflow.errors import DataError
from agentflow.models.alignment import align, spans_of
from agentflow.models.chat import conversation, render
from agentflow.models.engine import Engine
from agentflow.tasks.base import Item
from agentflow.tasks.files import read_items
from agentflow.tasks.records import Record
from agentflow.tasks.registry import make_task


@dataclass(frozen=True)
class Sample:
    """What the sender reads, what the receiver is asked about it, and the right answer."""

    context: str
    question: str
    answer: str


@dataclass(frozen=True, eq=False)
class Example:
    """A sample in tokens.

    Attributes:
        sender: of the conversation, in the sender's tokens.
        own: of the same, in the receiver's, as far as its own turn leaves it as it is.
        partners: `(len(own),)` the sender's token for each of them, or -1.
        asked: the receiver's turn behind `own`, up to where it answers.
        answer: the right answer, with the mark of its end.
    """

    sender: tuple[int, ...]
    own: tuple[int, ...]
    partners: Tensor
    asked: tuple[int, ...]
    answer: tuple[int, ...]


def load_samples(data: DataRecipe, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on, and those that are held out.

    Raises:
        UserError: a file that is missing, damaged or too short, or settings that the task doesn't have.
    """
    if data.task == "private_facts":
        task = make_task("private_facts", data.settings)
        made = [task.items(data=None, limit=n, seed=s) for n, s in ((data.train, seed), (data.held_out, seed + 1))]
        return _samples(made[0]), _samples(made[1])
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
    return _samples(items[data.held_out :][: data.train]), _samples(items[: data.held_out])


def make_examples(samples: Sequence[Sample], sender: Engine, receiver: Engine) -> list[Example]:
    """Render and align samples for a pair of models."""
    return [_example(sample, sender.tokenizer, receiver.tokenizer) for sample in samples]


def _example(sample: Sample, sender: Any, receiver: Any) -> Example:
    turns = conversation("", sample.context)
    theirs, own = render(sender, turns, reply=False), render(receiver, turns, reply=False)
    asked = render(receiver, conversation("", sample.question, turns), reply=True)
    shared = next((n for n, (a, b) in enumerate(zip(own, asked[:-1], strict=False)) if a != b), len(own))
    partners = align(spans_of(receiver, own, turns), spans_of(sender, theirs, turns))
    answer = receiver(sample.answer, add_special_tokens=False)["input_ids"]
    end = [receiver.eos_token_id] if receiver.eos_token_id is not None else []
    return Example(tuple(theirs), tuple(own[:shared]), partners[:shared], tuple(asked[shared:]), (*answer, *end))


def _samples(items: Sequence[Item]) -> list[Sample]:
    found = []
    for item in items:
        given = item.inputs
        if "facts" in given:
            context, questions = " ".join(given["facts"]), given["questions"]
        elif "documents" in given:
            context = "\n".join(f"{d['title']}: {d['text']}" for d in given["documents"])
            questions = [given["question"]]
        else:
            context, questions = given["context"], [given["question"]]
        found += [Sample(context, q, answers[0]) for q, answers in zip(questions, item.answers, strict=True)]
    return found


def _read_line(record: Record) -> Item:
    inputs = {name: record.text(name) for name in ("context", "question")}
    return Item(record.where, inputs, ((record.text("answer"),),))
