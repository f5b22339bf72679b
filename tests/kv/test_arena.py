from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentflow.kv.arena import GROWTH, MINIMUM, Arena
from tests.kv.samples import random_cache, random_entries


def test_an_arena_starts_with_room_to_spare() -> None:
    keys, values = random_entries(3)
    arena, *_ = Arena.append(None, keys, values, *random_entries(1))
    assert (arena.capacity, arena.used) == (MINIMUM, 4)


@given(st.lists(st.integers(1, 50), max_size=12))
def test_an_arena_is_replaced_only_when_full_and_then_grows_by_a_factor(steps: list[int]) -> None:
    arena, keys, values = Arena.append(None, *random_entries(1), *random_entries(1))
    for n in steps:
        old, room = arena, arena.capacity - arena.used
        arena, keys, values = Arena.append(arena, keys, values, *random_entries(n))
        assert (arena is old) == (n <= room)
        assert arena.used == keys[0].shape[1] <= arena.capacity
        if arena is not old:
            assert arena.capacity == max(MINIMUM, int(arena.used * GROWTH))


def test_growing_token_by_token_copies_an_amortised_constant() -> None:
    cache, copies, last = random_cache(1), 0, -1
    for _ in range(1000):
        cache = cache.extend(*random_entries(1))
        copies += cache.keys[0].data_ptr() != last
        last = cache.keys[0].data_ptr()
    assert copies <= 9  # 64 entries, then half as many again each time


def test_a_cache_grown_in_inference_mode_can_be_extended_outside_of_it() -> None:
    with torch.inference_mode():
        cache = random_cache(2).extend(*random_entries(2))
    longer = cache.extend(*random_entries(2, seed=1))
    assert torch.equal(longer.keys[0][:, 4:], random_entries(2, seed=1)[0][0])
    with torch.inference_mode():
        longest = longer.extend(*random_entries(1, seed=2))
    assert len(longest) == 7


def test_entries_that_want_a_gradient_are_held_without_their_graph() -> None:
    keys, values = random_entries(2)
    grown = random_cache(2).extend([k.requires_grad_() for k in keys], values)
    assert not grown.keys[0].requires_grad
    twice = grown.extend(keys, values)
    assert not twice.keys[0].requires_grad


def test_a_copy_may_be_written_without_a_trace_in_what_it_was_made_of_and_is_extended_without_another() -> None:
    cache = random_cache(5)
    before = [t.clone() for t in (*cache.keys, *cache.values)]
    copy = cache.copied()
    for tensor in (*copy.keys, *copy.values):
        tensor.add_(1)
    assert all(torch.equal(a, b) for a, b in zip((*cache.keys, *cache.values), before, strict=True))
    longer = copy.extend(*random_entries(3))
    assert [t.data_ptr() for t in longer.keys] == [t.data_ptr() for t in copy.keys]
    assert torch.equal(longer.keys[0][:, :5], cache.keys[0] + 1)
    assert (longer.next_position, longer.positions.tolist()) == (cache.next_position + 3, list(range(8)))
