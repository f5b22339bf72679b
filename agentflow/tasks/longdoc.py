"""Questions about long documents, LongBench style (Bai et al. 2023, arXiv 2308.14508).

Reads three shapes of record: whole prompts (`origin_prompt`, `gold`, as evaluation tools store them),
LongBench's own (`context` text, `input`, `answers`), and HotpotQA's (`context` list, `question`, `answer`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from agentflow.tasks.base import Item, TaskSettings
from agentflow.tasks.chunks import chunk
from agentflow.tasks.files import FileSettings, FileTask, LeftOut
from agentflow.tasks.hotpotqa import read_question
from agentflow.tasks.prompts import parse_prompt, passages
from agentflow.tasks.records import Record
from agentflow.tasks.scores import answer_scores

# The English question-answering sets of LongBench, by their file names.
DATASETS = frozenset({"2wikimqa", "hotpotqa", "musique", "multifieldqa_en", "narrativeqa", "qasper", "triviaqa"})
_SUFFIXES = frozenset({".gz", ".json", ".jsonl"})


class LongDocSettings(FileSettings):
    """How long documents may be, and how one without passages of its own is cut."""

    max_words: int | None = Field(default=None, ge=1, description="Leave out documents of more words than this.")
    chunk_words: int = Field(
        default=300, ge=20, description="Most words of a piece, where the document has no 'Passage N:' marks."
    )


class LongDoc(FileTask):
    """Inputs: `question` and `documents`, a list of `{"title": ..., "text": ...}` pieces of one document.

    Group is the data set: the record's `dataset`, or the file's name if it is one of LongBench's.
    """

    name: ClassVar[str] = "longdoc"
    Settings: ClassVar[type[TaskSettings]] = LongDocSettings
    primary: ClassVar[str] = "f1"
    metrics: ClassVar[tuple[str, ...]] = ("em", "f1", "contains")
    private: ClassVar[tuple[str, ...]] = ("documents",)
    settings: LongDocSettings

    def read(self, record: Record, seed: int) -> Item | LeftOut:
        """Read a record of any of the three shapes, unless its document is too long.

        Raises `DataError` naming the record if it is of none of the shapes.
        """
        item, most = self._read(record), self.settings.max_words
        if most is not None and item.meta["words"] > most:
            return LeftOut(f"documents of more than {most:,} words (max_words)")
        return item

    def _read(self, record: Record) -> Item:
        if "origin_prompt" in record.values:
            prompt = parse_prompt(_prompt_text(record))
            if isinstance(prompt, str):
                raise record.wrong(f"The prompt {prompt}.")
            return self._item(record, prompt.question, self._pieces(prompt.document), _answers(record, "gold"))
        if isinstance(record.values.get("context"), list):
            asked = read_question(record)
            documents = [paragraph.document() for paragraph in asked.paragraphs]
            return self._item(record, asked.question, documents, asked.answers)
        if "context" in record.values:
            pieces = self._pieces(record.text("context"))
            return self._item(record, record.text("input").strip(), pieces, _answers(record, "answers"))
        raise record.wrong("The record has neither 'origin_prompt' nor 'context'.")

    def score_answer(self, item: Item, question: int, prediction: str) -> dict[str, float]:
        """Return em, f1 and contains, each the best over the accepted answers."""
        return answer_scores(item.answers[question], prediction)

    def _pieces(self, document: str) -> list[dict[str, str]]:
        own = passages(document)
        if own:
            return [{"title": title, "text": text} for title, text in own]
        parts = chunk(document, self.settings.chunk_words)
        return [{"title": f"Part {number}", "text": text} for number, text in enumerate(parts, start=1)]

    def _item(self, record: Record, question: str, documents: list[dict[str, str]], answers: tuple[str, ...]) -> Item:
        named = "_id" in record.values or "id" in record.values
        return Item(
            id=record.text("_id", "id") if named else f"{_stem(record.path)}-{record.index}",
            inputs={"question": question, "documents": documents},
            answers=(answers,),
            group=_dataset(record),
            meta={"words": sum(len(document["text"].split()) for document in documents)},
        )


def _prompt_text(record: Record) -> str:
    """Return the prompt as one text; evaluation tools also store it as chat messages."""
    value: Any = record.need("origin_prompt")
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = "\n".join(part["prompt"] for part in value if isinstance(part.get("prompt"), str))
    if not isinstance(value, str) or not value.strip():
        raise record.wrong("'origin_prompt' must be a text that is not empty.")
    return value


def _answers(record: Record, key: str) -> tuple[str, ...]:
    record.need(key)
    answers = tuple(dict.fromkeys(text.strip() for text in record.texts(key) if text.strip()))
    if not answers:
        raise record.wrong(f"'{key}' holds no answer.")
    return answers


def _dataset(record: Record) -> str:
    named = record.values.get("dataset")
    if isinstance(named, str) and named:
        return named
    stem = _stem(record.path)
    return stem if stem.removesuffix("_e") in DATASETS else ""


def _stem(path: Path) -> str:
    while path.suffix in _SUFFIXES:
        path = path.with_suffix("")
    return path.name
