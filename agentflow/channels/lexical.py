"""Lexical relevance: BM25 of texts for a query. Needs no model."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor


def relevance(texts: Sequence[str], query: str) -> Tensor:
    """BM25 score of each text for the query `(n,)`, float32; zeros where no word is shared."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it turns its own debugging on when it is imported
    tokens = bm25s.tokenize(list(texts), stopwords="en", show_progress=False)
    asked = bm25s.tokenize([query], stopwords="en", show_progress=False, return_ids=False)[0]
    if not tokens.vocab or not asked:
        return torch.zeros(len(texts))
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)
    return torch.from_numpy(index.get_scores(asked)).float()
