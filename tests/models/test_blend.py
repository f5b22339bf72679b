"""Joined caches: exact at full recomputation, better the more is recomputed, for every family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agentflow.kv.fanin import concat
from agentflow.models.blend import _fresh, recompute
from tests.tiny import FAMILIES, tiny_engine, words

families = pytest.mark.parametrize("family", sorted(FAMILIES))


def error(cache, reference):
    pairs = zip((*cache.keys, *cache.values), (*reference.keys, *reference.values), strict=True)
    return sum(float((a - b).square().mean()) for a, b in pairs)


@families
def test_recomputing_more_comes_closer_and_everything_is_a_fresh_prefill(family):
    engine, a, b = tiny_engine(family), words(20, 1), words(15, 2)
    whole = engine.prefill(a + b)
    joined = concat([engine.prefill(a), engine.prefill(b)], engine.loaded.ropes)
    errors = [error(recompute(engine, joined, a + b, start=20, share=s), whole) for s in (0.0, 0.4, 1.0)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


@families
def test_a_joined_cache_differs_from_a_fresh_prefill_only_by_what_was_not_seen(family):
    """The first layer's keys and values depend on the token and its position alone: there the join is exact."""
    engine, a, b = tiny_engine(family), words(9, 1), words(12, 2)
    whole = engine.prefill(a + b)
    joined = concat([engine.prefill(a), engine.prefill(b)], engine.loaded.ropes)
    assert torch.allclose(joined.keys[0], whole.keys[0], atol=1e-4)
    assert torch.allclose(joined.values[0], whole.values[0], atol=1e-4)
    assert torch.equal(joined.positions, whole.positions)


def test_recomputing_leaves_the_joined_cache_as_it_was():
    engine, a, b = tiny_engine(), words(10, 1), words(10, 2)
    joined = concat([engine.prefill(a), engine.prefill(b)], engine.loaded.ropes)
    before = [k.clone() for k in joined.keys]
    recompute(engine, joined, a + b, start=10, share=0.5)
    assert all(torch.equal(x, y) for x, y in zip(before, joined.keys, strict=True))


def test_recomputed_positions_see_one_another_only_as_far_as_a_window_reaches():
    """Few enough to fit into the window by their number, and further apart than it reaches."""
    engine = tiny_engine("mistral-sliding")
    ids = words(50)
    whole, places = engine.prefill(ids), torch.tensor([20, 24, 37, 40, 49])
    keys, values = _fresh(engine, whole, ids, places)  # on a whole text they come out as they were
    for made, kept in zip((*keys, *values), (*whole.keys, *whole.values), strict=True):
        assert torch.allclose(made, kept[:, places], atol=1e-4)


def test_dropped_sinks_leave_holes_that_new_tokens_stand_behind():
    engine = tiny_engine()
    joined = concat([engine.prefill(words(6, 1)), engine.prefill(words(8, 2))], engine.loaded.ropes, drop_sinks=3)
    assert joined.positions.tolist() == [*range(6), *range(9, 14)]
    assert joined.next_position == 14
    mended = recompute(engine, joined, words(6, 1) + words(8, 2), start=6, share=0.5)
    assert mended.positions.tolist() == joined.positions.tolist()


@families
def test_a_closed_cache_is_joined_and_mended_at_its_rotary_positions(family):
    """Closed caches that lost nothing are plain ones with other places in the sequence: joining them is the same."""
    engine, a, b = tiny_engine(family), words(9, 1), words(12, 2)
    plain = [engine.prefill(a), engine.prefill(b)]
    spread = [replace(c, positions=2 * c.positions, next_position=2 * len(c), rotary=c.positions) for c in plain]
    ids = [0] * (2 * (len(a) + len(b)))
    ids[0::2] = a + b
    joined, other = (concat(caches, engine.loaded.ropes) for caches in (plain, spread))
    assert other.rotary_positions.tolist() == joined.positions.tolist()
    mended = recompute(engine, joined, a + b, start=9, share=0.5)
    again = recompute(engine, other, ids, start=18, share=0.5)
    for one, two in ((joined, other), (mended, again)):
        pairs = zip((*one.keys, *one.values), (*two.keys, *two.values), strict=True)
        assert all(torch.allclose(x, y, atol=1e-4) for x, y in pairs)
