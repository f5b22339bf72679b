"""Answering with one of several given answers: all are scored behind the same prompt, and the likeliest is taken."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from agentflow.kv.cache import KVCache
from agentflow.models.decoding import Sampler
from agentflow.models.requests import Generation, Request


class Scorer(Protocol):
    """What is asked of an engine."""

    tokenizer: Any

    def prefill(self, token_ids: Sequence[int], onto: KVCache | None = None) -> KVCache:
        """The cache of these tokens, on top of another."""

    def likelihoods(self, prefix: KVCache | None, token_id: int, answers: Sequence[Sequence[int]]) -> list[float]:
        """The log-likelihood of each answer behind `prefix` and one more token."""


def choose(engine: Scorer, request: Request) -> Generation:
    """Answer a request with one of its `choices`.

    The prompt is computed once. The choices are a batch on top of it, each followed by the end of an answer, so that
    one that begins like another is not favoured for being shorter. Greedily the likeliest is taken; with a temperature
    the totals are warped and sampled as logits are.
    """
    start = time.perf_counter()
    if request.cancelled is not None and request.cancelled():
        return _answer(request, (), "", start, None, cancelled=True)
    base = request.prefix
    if len(request.token_ids) > 1:
        base = engine.prefill(request.token_ids[:-1], base)
    last, end = request.token_ids[-1], engine.tokenizer.eos_token_id
    ended = [(*choice, *(() if end is None else (int(end),))) for choice in request.choices]
    totals = engine.likelihoods(base, last, ended)
    place = Sampler(request.sampling).choose(torch.tensor(totals))
    chosen = request.choices[place]
    text = engine.tokenizer.decode(chosen, skip_special_tokens=True)
    if request.on_token is not None:
        request.on_token(text)
    cache = engine.prefill((last, *(ended[place][:-1])), base) if request.keep_cache else None
    return _answer(request, ended[place], text, start, cache)


def _answer(
    request: Request,
    token_ids: tuple[int, ...],
    text: str,
    start: float,
    cache: KVCache | None,
    *,
    cancelled: bool = False,
) -> Generation:
    seconds = time.perf_counter() - start
    return Generation(
        token_ids=token_ids,
        text=text,
        finish="cancelled" if cancelled else "end",
        prefilled=len(request.token_ids),
        reused=len(request.prefix) if request.prefix is not None else 0,
        first_token_seconds=seconds,
        seconds=seconds,
        cache=cache,
    )
