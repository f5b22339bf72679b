"""A long text in pieces of about so many words, cut at paragraph or sentence ends where it has them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PARAGRAPH_END = re.compile(r"\n\s*")
# A full stop and the like, any closing quote or bracket, then space.
_SENTENCE_END = re.compile(r"[.!?。！？]+[\"'”’)\]]*\s+")
_WORD = re.compile(r"\S+\s*")


def chunk(text: str, words: int) -> list[str]:
    """Return the text's pieces in order, each of at most `words` words; no word is lost.

    Paragraphs are packed whole; one that is too long is cut into sentences, and a sentence that is too long
    (formulas, tables) between words.
    """
    pieces: list[str] = []
    current, size = "", 0
    for unit in _units(text, words):
        length = len(unit.split())
        if current.strip() and size + length > words:
            pieces.append(current.strip())
            current, size = "", 0
        current, size = current + unit, size + length
    if current.strip():
        pieces.append(current.strip())
    return pieces


def _units(text: str, words: int) -> Iterator[str]:
    for paragraph in _cut(text, _PARAGRAPH_END):
        if len(paragraph.split()) <= words:
            yield paragraph
            continue
        for sentence in _cut(paragraph, _SENTENCE_END):
            if len(sentence.split()) <= words:
                yield sentence
            else:
                yield from _slices(sentence, words)


def _cut(text: str, end: re.Pattern[str]) -> Iterator[str]:
    """Yield the text cut after every match of `end`; the parts add up to the text."""
    start = 0
    for match in end.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    if start < len(text):
        yield text[start:]


def _slices(text: str, words: int) -> Iterator[str]:
    parts = _WORD.findall(text)
    for start in range(0, len(parts), words):
        yield "".join(parts[start : start + words])
