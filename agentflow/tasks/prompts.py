"""Whole LongBench prompts taken apart again: the document and the question, without the instructions around.

The prompts (LongBench, arXiv 2308.14508, its `dataset2prompt`) read: an instruction, the document, the
instruction once more, "Question: ...", "Answer:".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUESTION = re.compile(r"^[ \t]*Question:", re.MULTILINE)
_ANSWER = re.compile(r"\s*^[ \t]*Answer:\s*\Z", re.MULTILINE)
_PASSAGES = re.compile(r"^The following are given passages\.[ \t]*\n", re.MULTILINE)
_PASSAGE = re.compile(r"^Passage (\d+):[ \t]*$", re.MULTILINE)
_INSTRUCTION = re.compile(r"\b(answer|question)s?\b", re.IGNORECASE)
_INSTRUCTION_WORDS = 60
_TITLE_WORDS = 20


@dataclass(frozen=True)
class Prompt:
    """The two parts of a prompt that matter; neither is empty."""

    document: str
    question: str


def parse_prompt(text: str) -> Prompt | str:
    """Return the prompt's document and question, or what it lacks."""
    marks = list(_QUESTION.finditer(text))
    if not marks:
        return "has no line that starts with 'Question:'"
    before, after = text[: marks[-1].start()], text[marks[-1].end() :]
    question = _ANSWER.sub("", after).strip()
    if not question:
        return "asks nothing after 'Question:'"
    document = _without_last_instruction(_without_first_instruction(before)).strip()
    return Prompt(document, question) if document else "holds no document before its question"


def passages(document: str) -> list[tuple[str, str]] | None:
    """Return (title, text) of each "Passage n:", or None if the document is not made of them.

    Marks count only in the order 1, 2, 3..., so that a passage may quote another document's mark.
    """
    marks: list[re.Match[str]] = []
    for match in _PASSAGE.finditer(document):
        if int(match.group(1)) == len(marks) + 1:
            marks.append(match)
    if not marks or document[: marks[0].start()].strip():
        return None
    ends = [*(mark.start() for mark in marks[1:]), len(document)]
    bodies = [document[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    return [_titled(number, body) for number, body in enumerate(bodies, start=1) if body]


def _titled(number: int, body: str) -> tuple[str, str]:
    """Take a passage's first line as its title if it is short and text follows."""
    first, _, rest = body.partition("\n")
    if rest.strip() and len(first.split()) <= _TITLE_WORDS:
        return first.strip(), rest.strip()
    return f"Passage {number}", body


def _is_instruction(block: str) -> bool:
    return len(block.split()) <= _INSTRUCTION_WORDS and _INSTRUCTION.search(block) is not None


def _without_first_instruction(text: str) -> str:
    lead = _PASSAGES.search(text)
    if lead and _is_instruction(text[: lead.start()]):
        return text[lead.end() :]
    first, gap, rest = text.lstrip().partition("\n\n")
    return rest if gap and _is_instruction(first) else text


def _without_last_instruction(text: str) -> str:
    rest, gap, last = text.rstrip().rpartition("\n\n")
    return rest if gap and _is_instruction(last) else text
