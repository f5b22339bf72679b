"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016 and 2018, arXiv 1606.05250, 1806.03822): questions about one paragraph.

Reads the official JSON, or lines of {id, title, context, question, answers} with the answers as a list, or as the hub's
{text: [...]}; either one gzipped. The data are licensed CC BY-SA 4.0; none of it is in this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from agentflow.tasks.base import TaskSettings
from agentflow.tasks.draws import Draws
from agentflow.tasks.files import LeftOut
from agentflow.tasks.multihop import MultiHopSettings, MultiHopTask, Question
from agentflow.tasks.paragraphs import Paragraph
from agentflow.tasks.records import Record


class SquadSettings(MultiHopSettings):
    """How much of its article stands beside a question's paragraph, and who holds it."""

    setting: Literal["full", "split"] = Field(
        default="full",
        description="full: the sender holds all paragraphs. split: the sender holds the one with the answer and half "
        "of the others, the receiver the rest.",
    )
    paragraphs: int | None = Field(
        default=1,
        ge=1,
        description="Paragraphs in all: the one with the answer and a seeded choice of its article's others.",
    )


class SQuAD(MultiHopTask):
    """One item per question that its paragraph answers. Same inputs as HotpotQA; every given answer is accepted."""

    name: ClassVar[str] = "squad"
    Settings: ClassVar[type[TaskSettings]] = SquadSettings

    def parts(self, record: Record) -> Iterable[Record]:
        """Take an article of the official file apart into its questions."""
        return _questions(record) if "paragraphs" in record.values else (_flat(record),)

    def parse(self, record: Record) -> Question | LeftOut:
        """Read one question with its article; unanswerable ones (SQuAD 2.0) are left out."""
        title = record.text("title")
        paragraphs = [Paragraph(title, text, n == record.values["at"]) for n, text in enumerate(record.texts("texts"))]
        answers = tuple(dict.fromkeys(a.strip() for a in record.texts("answers") if a.strip()))
        if not answers or record.values.get("is_impossible") is True:
            return LeftOut("its paragraph doesn't answer it")
        question = record.text("question").strip()
        return Question(record.text("id"), question, answers, paragraphs, group="", meta={"title": title})

    def sides(self, paragraphs: list[Paragraph], draws: Draws) -> tuple[list[Paragraph], list[Paragraph]] | None:
        """Return the paragraph with the answer and half of the others, and the rest; None where there is no rest."""
        others = [n for n, paragraph in enumerate(paragraphs) if not paragraph.gold]
        own = set(draws.sample(others, (len(others) + 1) // 2))
        if not own:
            return None
        sender = [paragraph for n, paragraph in enumerate(paragraphs) if n not in own]
        return sender, [paragraph for n, paragraph in enumerate(paragraphs) if n in own]


def _questions(record: Record) -> Iterator[Record]:
    """Every question of an article as a record of its own, with all of the article's paragraphs."""
    paragraphs = record.rows("paragraphs")
    for number, row in enumerate(paragraphs, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("context"), str) or not isinstance(row.get("qas"), list):
            raise record.wrong(f"Paragraph {number} must be an object with the text 'context' and the list 'qas'.")
    texts = [row["context"].strip() for row in paragraphs]
    for at, row in enumerate(paragraphs):
        for number, asked in enumerate(row["qas"], start=1):
            where = f"{record.where}, paragraph {at + 1}, question {number}"
            if not isinstance(asked, dict):
                raise record.wrong(f"Question {number} of paragraph {at + 1} must be an object.")
            known = {"title": record.values.get("title") or "Article", "texts": texts, "at": at}
            question = replace(record, where=where, values={**asked, **known})
            given = asked.get("answers", [])
            if not isinstance(given, list) or not all(isinstance(a, dict) and _is_text(a.get("text")) for a in given):
                raise question.wrong("'answers' must be a list of objects with a 'text'.")
            question.values["answers"] = [answer["text"] for answer in given]
            yield question


def _flat(record: Record) -> Record:
    """A record that is one question with its paragraph."""
    answers = record.need("answers")
    given = answers.get("text") if isinstance(answers, dict) else answers
    texts = [a.get("text") if isinstance(a, dict) else a for a in given] if isinstance(given, list) else [None]
    if not all(_is_text(text) for text in texts):
        raise record.wrong("'answers' must be a list of texts, or of objects with a 'text', or {text: [...]}.")
    title = record.values.get("title") or "Article"
    known = {"title": title, "texts": [record.text("context").strip()], "at": 0, "answers": texts}
    return replace(record, values={**record.values, **known})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
