"""Pieces of a text, and which of them to take: by sentence, by line or by words; the most relevant that fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

from agentflow.channels.lexical import relevance
from agentflow.models.sentences import split_sentences

Chunk = Literal["sentence", "paragraph", "words"]


def chunks_of(text: str, chunk: Chunk, words: int) -> list[str]:
    """Cut a text into pieces that keep their white space; blank ones are left out.

    Args:
        chunk: sentence (see `split_sentences`); paragraph: up to a line break; words: so many each.
        words: of each piece, where pieces are counted in words.
    """
    if chunk == "words":
        found = re.findall(r"\s*\S+", text)
        return ["".join(found[n : n + words]) for n in range(0, len(found), words)]
    pieces = split_sentences(text) if chunk == "sentence" else text.splitlines(keepends=True)
    return [piece for piece in pieces if piece.strip()]


def ranked(chunks: Sequence[str], query: str) -> list[int]:
    """Numbers of the chunks, the most relevant for the query (BM25) first; of equal ones the earlier."""
    if not chunks:
        return []
    order: list[int] = relevance(chunks, query).argsort(descending=True, stable=True).tolist()
    return order


def that_fit(order: Sequence[int], sizes: Sequence[int], budget: int) -> list[int]:
    """The chunks that fit, taken in this order; one that is too large is passed over for smaller ones."""
    taken = []
    for number in order:
        if sizes[number] <= budget:
            budget -= sizes[number]
            taken.append(number)
    return taken


def joined(chunks: Sequence[str], taken: Collection[int]) -> str:
    """The chunks that were taken, in their order; a space stands where the white space between two is gone."""
    text = ""
    for number in sorted(taken):
        gap = number - 1 not in taken and not (text[-1:].isspace() or chunks[number][0].isspace())
        text += f" {chunks[number]}" if gap else chunks[number]
    return text.strip()
