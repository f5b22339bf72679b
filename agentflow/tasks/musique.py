"""MuSiQue (Trivedi et al. 2022, arXiv 2108.00573): questions of 2 to 4 hops over 20 paragraphs."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from agentflow.tasks.files import LeftOut
from agentflow.tasks.multihop import MultiHopTask, Question
from agentflow.tasks.paragraphs import Paragraph
from agentflow.tasks.records import Record


class MuSiQue(MultiHopTask):
    """One item per answerable question; group is its number of hops ("2hop", "3hop", "4hop").

    Same inputs as HotpotQA; the answer's aliases are accepted too. With `setting: split` the gold paragraphs
    are shared as evenly as they can be, at least one on each side.
    """

    name: ClassVar[str] = "musique"

    def parse(self, record: Record) -> Question | LeftOut:
        """Read an official record; unanswerable ones (MuSiQue-Full) are left out."""
        if record.values.get("answerable") is False:
            return LeftOut("it has no answer in its paragraphs")
        item_id = record.text("id")
        answers = [record.text("answer"), *record.texts("answer_aliases")]
        return Question(
            id=item_id,
            question=record.text("question").strip(),
            answers=tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip())),
            paragraphs=[_paragraph(record, row) for row in record.rows("paragraphs")],
            group=_hops(item_id, record),
            meta={"decomposition": record.values.get("question_decomposition")},
        )


def _paragraph(record: Record, row: Any) -> Paragraph:
    keys = ("title", "paragraph_text")
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys):
        raise record.wrong("Each paragraph must be an object with the texts 'title' and 'paragraph_text'.")
    return Paragraph(title=row["title"], text=row["paragraph_text"].strip(), gold=row.get("is_supporting") is True)


def _hops(item_id: str, record: Record) -> str:
    """Return the number of hops from the id ("3hop1__…"), else from the decomposition, else ""."""
    named = re.match(r"(\d+hop)", item_id)
    if named:
        return named.group(1)
    steps = record.values.get("question_decomposition")
    return f"{len(steps)}hop" if isinstance(steps, list) and steps else ""
