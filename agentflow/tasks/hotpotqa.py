"""HotpotQA, distractor setting (Yang et al. 2018, arXiv 1809.09600): two of ten paragraphs hold the answer.

Reads the official JSON, or the same records as JSON Lines, either one gzipped. Scored as the official
`hotpot_evaluate_v1.py` scores answers, plus `contains`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from agentflow.tasks.files import LeftOut
from agentflow.tasks.multihop import MultiHopTask, Question
from agentflow.tasks.paragraphs import Paragraph, join_sentences
from agentflow.tasks.records import Record


class HotpotQA(MultiHopTask):
    """One item per question; group is the question's type, "bridge" or "comparison".

    With `setting: split`, sender and receiver hold half of the paragraphs each, one gold paragraph each.
    """

    name: ClassVar[str] = "hotpotqa"

    def parse(self, record: Record) -> Question | LeftOut:
        """Read an official record; gold titles come from `supporting_facts`, else `supporting_titles`."""
        return read_question(record)

    def splittable(self, paragraphs: list[Paragraph]) -> bool:
        """Tell whether exactly two paragraphs are gold."""
        return sum(paragraph.gold for paragraph in paragraphs) == 2


def read_question(record: Record) -> Question:
    """Return a HotpotQA-shaped record's question; `DataError` naming the record if it is malformed."""
    gold = gold_titles(record)
    kind = record.values.get("type")
    meta = {"level": record.values.get("level"), "gold_titles": gold}
    return Question(
        id=record.text("_id", "id"),
        question=record.text("question").strip(),
        answers=(record.text("answer").strip(),),
        paragraphs=[_paragraph(record, row, gold) for row in record.rows("context")],
        group=kind if isinstance(kind, str) else "",
        meta=meta,
    )


def gold_titles(record: Record) -> list[str]:
    """Return the titles of the paragraphs the answer needs, without repeats; [] if the record has none."""
    facts = record.values.get("supporting_facts")
    if not facts:
        return list(dict.fromkeys(record.texts("supporting_titles")))
    if not isinstance(facts, list) or not all(_is_fact(fact) for fact in facts):
        raise record.wrong("'supporting_facts' must be a list of [title, sentence number].")
    return list(dict.fromkeys(fact[0] for fact in facts))


def _is_fact(fact: Any) -> bool:
    return isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str)


def _paragraph(record: Record, row: Any, gold: list[str]) -> Paragraph:
    if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str):
        raise record.wrong("Each entry of 'context' must be [title, [sentences]].")
    title, sentences = row
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise record.wrong(f"The paragraph '{title}' must be a list of sentences.")
    return Paragraph(title=title, text=join_sentences(sentences), gold=title in gold)
