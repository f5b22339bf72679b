"""What engines compute is counted where somebody counts, and nowhere else."""

from __future__ import annotations

import threading

from agentflow.models.requests import Request
from agentflow.models.tally import tallied
from tests.tiny import tiny_engine, words


def test_prompts_answers_and_looks_at_queries_are_counted_on_every_engine():
    one, other = tiny_engine(), tiny_engine("qwen3")
    with tallied() as found:
        cache = one.prefill(words(20))
        answers = one.generate([Request(tuple(words(n, n)), cache, max_new_tokens=5) for n in (2, 7)])
        one.queries(cache, words(4))
        other.score(None, words(3), words(2))
    assert found.prefilled == 20 + (2 + 7) + 4 + (3 + 2)
    assert found.generated == sum(len(a.token_ids) for a in answers)


def test_other_threads_other_tallies_and_what_comes_after_are_not_counted():
    engine = tiny_engine()
    with tallied() as outer:
        with tallied() as inner:
            engine.prefill(words(3))
        thread = threading.Thread(target=engine.prefill, args=(words(5),))
        thread.start()
        thread.join()
        engine.prefill(words(7))
    engine.prefill(words(11))
    assert (inner.prefilled, outer.prefilled) == (3, 7)
