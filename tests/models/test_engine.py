"""Decoding: when it stops, what it costs, what it leaves alone."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import pytest
import torch

from agentflow.errors import ModelError
from agentflow.kv.cache import KVCache
from agentflow.models.requests import Request, Sampling
from tests.tiny import FAMILIES, make_engine, tiny_engine, tiny_model, words


def test_every_position_kept_without_bias_is_the_uncompacted_cache():
    engine = tiny_engine()
    cache = engine.prefill(words(20))
    same = cache.select(torch.arange(20))
    zero = KVCache(same.keys, same.values, same.positions, same.next_position, same.bias_or_zero())
    request = [Request(tuple(words(4, 1)), c, max_new_tokens=8) for c in (cache, same, zero)]
    answers = [engine.generate([r])[0].token_ids for r in request]
    assert answers[0] == answers[1] == answers[2]


def test_a_bias_of_log_two_is_the_key_twice():
    engine = tiny_engine()
    cache = engine.prefill(words(12))
    double = torch.zeros(2, 12)
    double[:, 5] = math.log(2)
    biased = KVCache(cache.keys, cache.values, cache.positions, cache.next_position, (double,) * 4)
    index = torch.tensor([*range(6), 5, *range(6, 12)])
    twice = KVCache(
        tuple(k[:, index] for k in cache.keys), tuple(v[:, index] for v in cache.values), torch.arange(13), 13
    )
    with torch.no_grad():
        a, _ = engine._forward([Request(tuple(words(3, 1)), biased)], keep=3)
        # the same positions for the new tokens, whatever the number of entries
        moved = KVCache(twice.keys, twice.values, torch.arange(13) - 1, 12)
        b, _ = engine._forward([Request(tuple(words(3, 1)), moved)], keep=3)
    assert torch.allclose(a, b, atol=1e-5)


def test_new_tokens_stand_behind_the_original_length_of_a_compacted_cache():
    engine = tiny_engine()
    cache = engine.prefill(words(20))
    kept = cache.select(torch.tensor([0, 3, 19]))
    grown = engine.generate([Request(tuple(words(4, 1)), kept, max_new_tokens=3, keep_cache=True)])[0].cache
    assert grown.positions.tolist() == [0, 3, 19, *range(20, 20 + 4 + 2)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_rotary_positions_are_what_a_model_sees_whatever_tokens_stand_there(family):
    """Other places in a sequence change nothing while keys are turned as before; ragged batches included."""
    engine = tiny_engine(family)
    plain = engine.prefill(words(12))
    spread = replace(plain, positions=3 * plain.positions, next_position=40, rotary=plain.positions, _arena=None)
    asked = [tuple(words(n, n)) for n in (3, 7)]
    both = [engine.generate([Request(a, c, max_new_tokens=5, keep_cache=True) for a in asked]) for c in (plain, spread)]
    for one, other in zip(*both, strict=True):
        assert one.token_ids == other.token_ids
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one.cache.keys, other.cache.keys, strict=True))
        assert other.cache.rotary_positions.tolist() == one.cache.positions.tolist()
        assert other.cache.positions[12:].tolist() == list(range(40, 40 + len(one.cache) - 12))
    queries = [engine.queries(c, asked[1]) for c in (plain, spread)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*queries, strict=True))


def test_a_model_has_room_for_what_stands_in_a_closed_cache_not_for_what_was_dropped():
    engine = tiny_engine()
    limit = engine.max_positions
    cache = engine.prefill(words(10))
    far = replace(cache, positions=cache.positions + limit, next_position=2 * limit, _arena=None)
    with pytest.raises(ModelError, match="more than the"):
        engine.check(Request(tuple(words(3)), far))
    engine.check(Request(tuple(words(3)), replace(far, rotary=cache.positions)))


def test_nothing_changes_a_cache_that_someone_holds():
    engine = tiny_engine()
    held = engine.prefill(words(15))
    copies = [t.clone() for t in (*held.keys, *held.values)]
    requests = [Request(tuple(words(n, n)), held, max_new_tokens=6, keep_cache=True) for n in (2, 5)]
    first = engine.generate(requests)
    forked = [engine.prefill(words(3, seed), first[0].cache) for seed in (7, 8)]
    kept = [t.clone() for t in forked[0].keys]
    engine.prefill(words(9, 9), forked[0])
    assert all(torch.equal(a, b) for a, b in zip(copies, (*held.keys, *held.values), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(kept, forked[0].keys, strict=True))
    assert not torch.equal(forked[0].keys[0][:, -1], forked[1].keys[0][:, -1])


def test_a_prefix_shared_by_many_rows_is_one_segment():
    engine = tiny_engine()
    held = engine.prefill(words(15))
    views = [held.before(9) for _ in range(3)]  # equal views of the same memory count as one
    from agentflow.models.engine import _segments

    assert len(_segments([held, *views, None, held])) == 2


def test_prefixes_that_share_some_of_their_memory_are_not_taken_for_each_other():
    engine = tiny_engine()
    base = engine.prefill(words(20, seed=1))
    changed = {
        "values": replace(base, values=tuple(-v for v in base.values), _arena=None),
        "last layer": replace(base, keys=(*base.keys[:-1], -base.keys[-1]), _arena=None),
        "bias": replace(
            base, bias=tuple((8.0 * torch.arange(20) % 16).expand(k.shape[:2]) for k in base.keys), _arena=None
        ),
    }
    for what, other in changed.items():
        requests = [Request(tuple(words(5, seed=4)), prefix, max_new_tokens=6) for prefix in (base, other)]
        alone = [engine.generate([request])[0].token_ids for request in requests]
        assert alone[0] != alone[1], what
        assert [answer.token_ids for answer in engine.generate(requests)] == alone, what


def test_sampling_is_the_same_for_the_same_seed_and_alone_or_in_a_batch():
    engine = tiny_engine()
    hot = [Request(tuple(words(5, 1)), max_new_tokens=12, sampling=Sampling(1.5, 0.9, 50, seed)) for seed in (1, 2, 1)]
    a, b, c = engine.generate(hot)
    assert a.token_ids == c.token_ids == engine.generate([hot[0]])[0].token_ids
    assert a.token_ids != b.token_ids


def test_stop_strings_end_an_answer_and_are_cut_off():
    engine = tiny_engine()
    free = engine.generate([Request(tuple(words(6, 2)), max_new_tokens=20)])[0]
    stop = free.text[3:6]
    spoken: list[str] = []
    got = engine.generate([Request(tuple(words(6, 2)), max_new_tokens=20, stop=(stop,), on_token=spoken.append)])[0]
    assert got.finish == "stop"
    assert got.text == free.text[: free.text.index(stop)]
    assert "".join(spoken) == got.text


def test_streamed_pieces_join_to_the_answer():
    spoken: list[str] = []
    got = tiny_engine().generate([Request(tuple(words(6, 2)), max_new_tokens=20, on_token=spoken.append)])[0]
    assert "".join(spoken) == got.text


def test_a_deadline_ends_decoding_within_a_step():
    engine = tiny_engine()
    late, free = engine.generate(
        [Request(tuple(words(4)), max_new_tokens=400, deadline=0.05), Request(tuple(words(4)), max_new_tokens=5)]
    )
    assert late.finish in ("deadline", "end")
    assert len(late.token_ids) < 400
    assert free.finish in ("length", "end")


def test_cancelling_ends_every_row_within_a_step():
    engine, flag = tiny_engine("qwen3"), threading.Event()
    threading.Timer(0.1, flag.set).start()
    start = time.perf_counter()
    got = engine.generate([Request(tuple(words(4)), max_new_tokens=480, cancelled=flag.is_set)] * 2)
    assert {g.finish for g in got} <= {"cancelled", "end"}
    assert time.perf_counter() - start < 5


def test_prefill_only_generates_nothing_and_keeps_the_cache():
    got = tiny_engine().generate([Request(tuple(words(7)), max_new_tokens=0, keep_cache=True)])[0]
    assert (got.finish, got.text, got.token_ids, len(got.cache)) == ("prefill", "", (), 7)


def test_scores_equal_the_logits_of_the_whole_sequence():
    engine, ids, answer = tiny_engine(), words(20), words(4, 3)
    cache = engine.prefill(ids[:13])
    score = engine.score(cache, ids[13:], answer, keep_distribution=True)
    with torch.no_grad():
        logits = tiny_model().double()(input_ids=torch.tensor([[*ids, *answer]])).logits[0]
    reference = logits.log_softmax(-1)[len(ids) - 1 : -1]
    assert torch.allclose(score.distribution.double(), reference, atol=1e-4)
    picked = reference.gather(1, torch.tensor(answer)[:, None])[:, 0]
    assert score.nll == pytest.approx(-float(picked.mean()), abs=1e-4)


def test_queries_are_those_of_a_whole_forward_pass():
    engine, ids = tiny_engine(), words(14)
    whole = engine.queries(None, ids)
    upper = engine.queries(engine.prefill(ids[:9]), ids[9:])
    assert len(whole) == 4
    for a, b in zip(whole, upper, strict=True):
        assert torch.allclose(a[:, 9:], b, atol=1e-5)


def test_requests_that_cannot_be_answered_are_refused_with_the_numbers():
    engine = tiny_engine()
    with pytest.raises(ModelError, match="at least one token"):
        engine.generate([Request(())])
    with pytest.raises(ModelError, match="510 tokens and 64 new ones are more than the 512"):
        engine.generate([Request(tuple(words(510)))])
    foreign = make_engine(tiny_model("llama", num_key_value_heads=4), "four").prefill(words(3))
    with pytest.raises(ModelError, match="4 KV heads"):
        engine.generate([Request(tuple(words(3)), foreign)])


def test_an_empty_batch_has_no_answers():
    assert tiny_engine().generate([]) == []


def test_threads_share_an_engine():
    engine = tiny_engine()
    alone = [engine.generate([Request(tuple(words(6, s)), max_new_tokens=8)])[0].token_ids for s in range(6)]
    found: dict[int, tuple[int, ...]] = {}

    def ask(seed: int) -> None:
        found[seed] = engine.generate([Request(tuple(words(6, seed)), max_new_tokens=8)])[0].token_ids

    threads = [threading.Thread(target=ask, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [found[s] for s in range(6)] == alone
