"""Answers that must be JSON of a schema: one that is not is asked for again, with what is wrong as the next turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentflow.channels.base import Context
from agentflow.errors import UserError
from agentflow.kv.payload import Turn
from agentflow.models.chat import append_turn
from agentflow.models.engine import Engine
from agentflow.models.pool import Speaker
from agentflow.models.requests import Generation
from agentflow.runtime.agent import Turnplan
from agentflow.runtime.foundation import lay
from agentflow.runtime.records import Answer
from agentflow.workflow.outputs import AnswerError, parse_answer
from agentflow.workflow.parts import OutputSpec

Generate = Callable[[list[Turnplan]], list[Generation]]


@dataclass(frozen=True, eq=False)
class Said:
    """What came of a turn.

    Attributes:
        answer: the one that holds; what others cost is added to it.
        generated: tokens of all of them.
        value: what it is as JSON, where it has to be.
        error: why none of them is that.
    """

    answer: Generation
    generated: int
    value: Any = None
    error: str = ""


def ask(
    speaker: Speaker, plans: Sequence[Turnplan], outputs: Sequence[OutputSpec | None], generate: Generate
) -> list[Said]:
    """Answer turns as one batch, and again those whose answers are not what their schema asks for.

    Tries that failed are no part of what a receiver is sent: the answer that holds stands right behind the prompt.

    Args:
        generate: answers a batch of turns.
    """
    first = generate(list(plans))
    said = [_said(answer, spec) for answer, spec in zip(first, outputs, strict=True)]
    tried = dict.fromkeys(range(len(plans)), 1)
    turns = list(plans)
    while open_ones := [n for n, one in enumerate(said) if _asks_again(one, outputs[n], tried[n])]:
        ready = []
        for n in open_ones:
            tried[n] += 1
            try:
                turns[n] = _again(speaker, turns[n], said[n])
                ready.append(n)
            except UserError as error:  # the conversation has grown too long
                said[n] = replace(said[n], error=f"{said[n].error}; it can't be asked again: {error.what}")
                tried[n] = sys.maxsize
        for n, answer in zip(ready, generate([turns[n] for n in ready]), strict=True):
            said[n] = _added(said[n], _said(answer, outputs[n]))
    return [
        _behind_the_prompt(speaker, plan, whole, one) if tried[n] > 1 and not one.error else one
        for n, (plan, whole, one) in enumerate(zip(plans, first, said, strict=True))
    ]


def _asks_again(said: Said, spec: OutputSpec | None, tried: int) -> bool:
    return spec is not None and bool(said.error) and said.answer.finish != "cancelled" and tried < spec.attempts


def _said(answer: Generation, spec: OutputSpec | None) -> Said:
    if spec is None or answer.finish == "cancelled":
        return Said(answer, answer.generated)
    try:
        return Said(answer, answer.generated, parse_answer(answer.text, spec.json_schema))
    except AnswerError as error:
        return Said(answer, answer.generated, error=str(error))


def _again(speaker: Speaker, plan: Turnplan, said: Said) -> Turnplan:
    """The next turn of the same conversation: what was wrong, on the cache of what was said."""
    complaint = f"That is not the JSON that was asked for: {said.error}. Answer again, with the JSON alone."
    turns = append_turn(append_turn(plan.turns, Turn("assistant", said.answer.text)), Turn("user", complaint))
    base, cache = plan.foundation, said.answer.cache
    before: list[Context] = []
    if cache is not None:
        known = (*base.token_ids, *said.answer.token_ids)[: cache.next_position]
        before = [Context(turns, cache=cache, token_ids=known, head=base.head, losses=base.losses)]
    foundation = lay(speaker, turns, before, reply=True, reuse=False)
    sampling = replace(plan.request.sampling, seed=plan.request.sampling.seed + 1)  # the same would draw the same again
    request = replace(plan.request, token_ids=foundation.suffix, prefix=foundation.prefix, sampling=sampling)
    speaker.check(request)
    return replace(plan, turns=turns, foundation=foundation, request=request)


def _added(before: Said, now: Said) -> Said:
    a, b = before.answer, now.answer
    whole = replace(
        b,
        prefilled=a.prefilled + b.prefilled,
        reused=a.reused,
        first_token_seconds=a.first_token_seconds,
        seconds=a.seconds + b.seconds,
        warnings=tuple(dict.fromkeys((*a.warnings, *b.warnings))),
    )
    return replace(now, answer=whole, generated=before.generated + now.generated)


def _behind_the_prompt(speaker: Speaker, plan: Turnplan, first: Generation, said: Said) -> Said:
    """The same with the cache of the prompt and the answer that holds, as if it had been the first."""
    cache = None
    if plan.request.keep_cache and isinstance(speaker, Engine):
        tokens = Answer.of(said.answer).request(plan.request)
        asked = replace(plan.request, token_ids=tokens, max_new_tokens=0, cancelled=None, on_token=None)
        if first.cache is not None:  # the prompt is computed already
            known = len(plan.request.token_ids) - 1
            start = plan.request.prefix.next_position if plan.request.prefix is not None else 0
            asked = replace(asked, token_ids=tokens[known:], prefix=first.cache.before(start + known))
        cache = speaker.generate([asked])[0].cache
    return replace(said, answer=replace(said.answer, cache=cache))
