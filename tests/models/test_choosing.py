"""One of several given answers: each is as likely as it would be alone, and the likeliest becomes the answer."""

from __future__ import annotations

import pytest
import torch

from agentflow.models import engine as engine_room
from agentflow.models.requests import Request, Sampling
from tests.tiny import FAMILIES, tiny_engine, words

ANSWERS = [words(1, 3), words(4, 5), words(2, 6), words(4, 5)[:3]]


def chosen(engine, prompt, prefix=None, **more):
    choices = tuple(tuple(a) for a in ANSWERS)
    return engine.generate([Request(tuple(prompt), prefix, max_new_tokens=6, choices=choices, **more)])[0]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_likelihoods_are_those_of_each_answer_alone(family):
    assert family in FAMILIES
    engine = tiny_engine(family)
    prefix, prompt = engine.prefill(words(9)), words(5, 1)
    found = engine.likelihoods(engine.prefill(prompt[:-1], prefix), prompt[-1], ANSWERS)
    alone = [float(engine.score(prefix, prompt, answer).log_probs.sum()) for answer in ANSWERS]
    assert found == pytest.approx(alone, abs=1e-3)


def test_likelihoods_do_not_depend_on_how_many_are_looked_at_together(monkeypatch):
    engine = tiny_engine()
    together = engine.likelihoods(engine.prefill(words(9)), 5, ANSWERS)
    monkeypatch.setattr(engine_room, "LOGITS", 1)
    assert engine.likelihoods(engine.prefill(words(9)), 5, ANSWERS) == pytest.approx(together, abs=1e-4)


def test_the_likeliest_answer_with_its_end_is_given():
    engine = tiny_engine()
    end = engine.tokenizer.eos_token_id
    totals = [float(engine.score(None, words(7), [*answer, end]).log_probs.sum()) for answer in ANSWERS]
    best = ANSWERS[totals.index(max(totals))]
    answer = chosen(engine, words(7))
    assert answer.token_ids == (*best, end)
    assert answer.text == engine.tokenizer.decode(best)
    assert (answer.finish, answer.prefilled) == ("end", 7)


def test_the_cache_is_that_of_prompt_and_answer_on_the_prefix():
    engine = tiny_engine()
    prefix = engine.prefill(words(9))
    answer = chosen(engine, words(4, 1), prefix, keep_cache=True)
    whole = engine.prefill([*words(4, 1), *answer.token_ids[:-1]], prefix)
    assert answer.cache.next_position == whole.next_position
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(answer.cache.keys, whole.keys, strict=True))
    assert answer.reused == 9


def test_a_batch_may_hold_both_kinds_of_requests():
    engine = tiny_engine()
    free = [Request(tuple(words(n, n)), max_new_tokens=3) for n in (4, 6)]
    bound = Request(tuple(words(7)), max_new_tokens=6, choices=tuple(tuple(a) for a in ANSWERS))
    mixed = engine.generate([free[0], bound, free[1]])
    assert [a.token_ids for a in mixed] == [
        engine.generate([r])[0].token_ids for r in (free[0], bound, free[1])
    ]  # fmt: skip


def test_with_a_temperature_an_answer_is_drawn_and_equal_seeds_draw_the_same():
    engine = tiny_engine()
    draws = [Sampling(temperature=50.0, seed=seed) for seed in range(6)]
    drawn = [chosen(engine, words(3), sampling=draw).token_ids for draw in draws]
    assert len(set(drawn)) > 1
    assert drawn[:2] == [chosen(engine, words(3), sampling=draw).token_ids for draw in draws[:2]]


def test_a_choice_that_is_called_off_answers_nothing():
    answer = chosen(tiny_engine(), words(7), cancelled=lambda: True)
    assert (answer.finish, answer.token_ids) == ("cancelled", ())
