"""Questions over several paragraphs, of which some hold the answer: the shape HotpotQA and MuSiQue share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field

from agentflow.tasks.base import Item, TaskSettings
from agentflow.tasks.draws import Draws
from agentflow.tasks.files import FileSettings, FileTask, LeftOut
from agentflow.tasks.halves import Half, half_of, in_half
from agentflow.tasks.paragraphs import Paragraph, keep, split
from agentflow.tasks.records import Record
from agentflow.tasks.scores import answer_scores


class MultiHopSettings(FileSettings):
    """Who holds which paragraphs, and which items are used."""

    setting: Literal["full", "split"] = Field(
        default="full",
        description="full: the sender holds all paragraphs. split: sender and receiver hold half each, "
        "with gold paragraphs on both sides, so neither can answer alone.",
    )
    paragraphs: int | None = Field(
        default=None,
        ge=2,
        description="Keep only this many paragraphs: all gold ones and a seeded choice of the others.",
    )
    split_half: Half = Field(
        default="all",
        description="Use all items, or the tuning or the reporting half (SHA-256 of the id: even, odd).",
    )


@dataclass(frozen=True)
class Question:
    """One record, whatever its file's format; paragraphs are in file order."""

    id: str
    question: str
    answers: tuple[str, ...]
    paragraphs: list[Paragraph]
    group: str
    meta: dict[str, Any] = field(default_factory=dict)


class MultiHopTask(FileTask):
    """Inputs: `question`, `documents` (the sender's) and `own_documents` (the receiver's).

    Documents are lists of `{"title": ..., "text": ...}`; `own_documents` is empty with `setting: full`.
    """

    Settings: ClassVar[type[TaskSettings]] = MultiHopSettings
    primary: ClassVar[str] = "f1"
    metrics: ClassVar[tuple[str, ...]] = ("em", "f1", "contains")
    private: ClassVar[tuple[str, ...]] = ("documents",)
    settings: MultiHopSettings

    @abstractmethod
    def parse(self, record: Record) -> Question | LeftOut:
        """Read one record of this task's format."""

    def read(self, record: Record, seed: int) -> Item | LeftOut:
        """Turn a record into an item; left out: the other half, and gold paragraphs that can't be split."""
        parsed = self.parse(record)
        if isinstance(parsed, LeftOut):
            return parsed
        if not in_half(parsed.id, self.settings.split_half):
            return LeftOut(f"not in the {self.settings.split_half} half", asked=True)
        draws = Draws(f"{seed}:{parsed.id}")
        kept = keep(parsed.paragraphs, self.settings.paragraphs, draws)
        if kept is None:
            return LeftOut("its gold paragraphs are unknown, so a choice of paragraphs can't keep them")
        if self.settings.setting == "full":
            return _item(parsed, kept, [])
        sides = self.sides(kept, draws)
        if sides is None:
            return LeftOut("its gold paragraphs can't be split between sender and receiver")
        return _item(parsed, *sides)

    def sides(self, paragraphs: list[Paragraph], draws: Draws) -> tuple[list[Paragraph], list[Paragraph]] | None:
        """Return the sender's and the receiver's for `setting: split`, None where that can't be."""
        return split(paragraphs, draws) if self.splittable(paragraphs) else None

    def splittable(self, paragraphs: list[Paragraph]) -> bool:
        """Tell whether the gold paragraphs are as many as the task expects for `setting: split`."""
        return True

    def score_answer(self, item: Item, question: int, prediction: str) -> dict[str, float]:
        """Return em, f1 and contains, each the best over the accepted answers."""
        return answer_scores(item.answers[question], prediction)


def _item(parsed: Question, documents: list[Paragraph], own: list[Paragraph]) -> Item:
    meta = {
        **parsed.meta,
        "half": half_of(parsed.id),
        "gold_documents": [at for at, paragraph in enumerate(documents) if paragraph.gold],
        "gold_own_documents": [at for at, paragraph in enumerate(own) if paragraph.gold],
    }
    inputs = {
        "question": parsed.question,
        "documents": [paragraph.document() for paragraph in documents],
        "own_documents": [paragraph.document() for paragraph in own],
    }
    return Item(id=parsed.id, inputs=inputs, answers=(parsed.answers,), group=parsed.group, meta=meta)
