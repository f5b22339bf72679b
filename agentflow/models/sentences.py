"""Sentences of a text, and of a token sequence: which tokens belong together, and their text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

_END = ('."', '!"', '?"', ".”", ".", "!", "?", ":")
# The same for a text; the full-width marks need no space behind them. Blank lines belong to what they end.
_CUT = re.compile(rf"(?:(?:{'|'.join(map(re.escape, _END))})(?=\s)|[。！？][”」』]?)(?:[^\S\n]*\n)*|\n(?:[^\S\n]*\n)*")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text with all their white space: joined they are the text again.

    A sentence ends with a line, or where `.`, `!`, `?` or `:` is followed by a space.
    """
    ends = [0, *(match.end() for match in _CUT.finditer(text)), len(text)]
    return [text[a:b] for a, b in pairwise(ends) if a < b]


def sentences_of(tokenizer: Any, token_ids: Sequence[int]) -> tuple[Tensor, list[str]]:
    """Number the sentence of each token.

    A sentence ends with a line, with a special token, or where `.`, `!`, `?` or `:` is followed by a space.

    Returns:
        `(T,)` sentence numbers, -1 for special tokens; and the sentences' texts.
    """
    special = set(tokenizer.all_special_ids)
    pieces = tokenizer.batch_decode([[i] for i in token_ids])
    numbers: list[int] = []
    texts: list[str] = []
    fresh = True
    for n, (token, piece) in enumerate(zip(token_ids, pieces, strict=True)):
        if token in special:
            numbers.append(-1)
            fresh = True
            continue
        if fresh:
            texts.append("")
        texts[-1] += piece
        numbers.append(len(texts) - 1)
        following = pieces[n + 1] if n + 1 < len(pieces) else " "
        fresh = "\n" in piece or (piece.rstrip().endswith(_END) and following[:1].isspace())
    return torch.tensor(numbers, dtype=torch.long), texts


def paragraphs_of(texts: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Join sentences (as `sentences_of` gives them) to paragraphs, which end with a line.

    Returns:
        `(n,)` the number of each sentence's paragraph; and the paragraphs' texts.
    """
    numbers: list[int] = []
    paragraphs: list[str] = []
    fresh = True
    for text in texts:
        if fresh:
            paragraphs.append("")
        paragraphs[-1] += text
        numbers.append(len(paragraphs) - 1)
        fresh = "\n" in text
    return torch.tensor(numbers, dtype=torch.long), paragraphs
