"""The store of computed prefixes: always the longest one, never a wrong one, within its budget."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.kv.cache import KVCache
from agentflow.models.prefixes import PrefixStore
from agentflow.models.requests import Request
from tests.tiny import tiny_engine, words


def cache_of(token_ids) -> KVCache:
    """A cache whose keys tell which tokens they are of."""
    keys = torch.tensor(token_ids, dtype=torch.float32).reshape(1, -1, 1)
    return KVCache.stacked([keys], [keys.clone()])


def agreement(a, b) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(stored=sequences, asked=sequences)
def test_the_longest_stored_prefix_is_found_and_holds_the_right_tokens(stored, asked):
    store = PrefixStore()
    for ids in stored:
        store.add(ids, cache_of(ids))
    for ids in asked:
        shared = max(agreement(s, ids) for s in stored)
        cache, found = store.find(ids)
        assert found == shared
        if shared:
            assert cache.keys[0][0, :, 0].tolist() == ids[:shared]
            assert cache.next_position == shared


def test_a_growing_trajectory_prefills_only_its_end():
    engine = tiny_engine("qwen2")
    engine.prefixes.clear()
    ids: list[int] = []
    prefilled = 0
    for step in range(10):
        ids = [*ids, *words(17, step)]
        cache, found = engine.prefixes.find(ids)
        prefilled += len(ids) - found
        grown = engine.prefill(ids[found:], cache)
        engine.prefixes.add(ids, grown)
    assert prefilled == len(ids)
    assert engine.prefixes.stats.entries == 1  # earlier steps are views of the same buffer
    fresh = engine.generate([Request((*ids, 7), max_new_tokens=5)])[0]
    reused = engine.generate([Request((7,), grown, max_new_tokens=5)])[0]
    assert fresh.token_ids == reused.token_ids
    engine.prefixes.clear()


def test_a_fork_shares_what_is_common_and_keeps_both():
    store = PrefixStore()
    store.add([1, 2, 3, 4], cache_of([1, 2, 3, 4]))
    store.add([1, 2, 9], cache_of([1, 2, 9]))
    assert store.find([1, 2, 3, 4, 5])[1] == 4
    assert store.find([1, 2, 9, 9])[1] == 3
    assert store.find([1, 2])[1] == 2
    assert store.find([7])[0] is None
    stats = store.stats
    assert (stats.lookups, stats.hits, stats.tokens_found) == (4, 3, 9)


def test_the_least_recently_used_goes_first_when_the_budget_is_passed():
    one = cache_of([1] * 100)
    store = PrefixStore(max_bytes=2 * one.buffer_bytes + 10)
    store.add([1] * 100, one)
    store.add([2] * 100, cache_of([2] * 100))
    store.find([1, 1])
    store.add([3] * 100, cache_of([3] * 100))
    assert [store.find([n, n])[1] for n in (1, 2, 3)] == [2, 0, 2]
    assert store.stats.bytes <= store.max_bytes


def test_compacted_and_biased_caches_are_no_prefixes():
    store = PrefixStore()
    cache = cache_of([1, 2, 3])
    store.add([1, 2, 3], cache.select(torch.tensor([0, 2])))
    store.add([1, 2, 3], KVCache(cache.keys, cache.values, cache.positions, 3, (torch.zeros(1, 3),)))
    assert store.find([1, 2, 3]) == (None, 0)
