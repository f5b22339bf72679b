from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import PayloadError
from agentflow.kv.cache import KVCache
from agentflow.kv.fanin import overlaid
from tests.kv.samples import closed, random_cache, random_entries, same_tensor


def snapshot(cache: KVCache) -> list[torch.Tensor]:
    return [t.clone() for t in (*cache.keys, *cache.values, cache.positions, *(cache.bias or ()))]


def unchanged(cache: KVCache, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(snapshot(cache), before, strict=True))


def test_a_cache_tells_its_shapes_size_and_format() -> None:
    cache = random_cache(5, biased=True)
    assert len(cache) == 5
    assert str(cache.geometry) == "3 layers, 1 KV heads x 6/4 | 2 KV heads x 8"
    assert cache.geometry.scalars_per_position == 2 * (2 * 16) + 10
    assert cache.nbytes == 5 * (74 * 4 + 5 * 4)
    assert (cache.dtype, cache.device) == (torch.float32, torch.device("cpu"))
    assert not cache.contiguous
    assert random_cache(5).contiguous


@given(st.data())
def test_select_keeps_the_named_entries_with_their_positions(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    cache = random_cache(n, biased=data.draw(st.booleans()), start=data.draw(st.integers(0, 3)))
    chosen = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    kept = cache.select(torch.tensor(chosen, dtype=torch.long))
    expected = sorted(chosen)
    assert kept.positions.tolist() == [int(cache.positions[i]) for i in expected]
    assert kept.next_position == cache.next_position
    for old, new in zip((*cache.keys, *cache.values), (*kept.keys, *kept.values), strict=True):
        assert torch.equal(new, old[:, expected])
    mask = torch.zeros(n, dtype=torch.bool)
    mask[expected] = True
    assert torch.equal(cache.select(mask).keys[0], kept.keys[0])
    assert (kept.bias is None) == (cache.bias is None)


@pytest.mark.parametrize(
    "index", [torch.tensor([0, 0]), torch.tensor([5]), torch.tensor([-1]), torch.ones(4, dtype=torch.bool)]
)
def test_select_refuses_repeated_missing_and_misshapen_entries(index: torch.Tensor) -> None:
    with pytest.raises(PayloadError):
        random_cache(5).select(index)


@given(st.integers(0, 14), st.lists(st.integers(0, 9), unique=True, min_size=1))
def test_before_is_what_stands_before_a_position_without_a_copy(position: int, kept: list[int]) -> None:
    cache = random_cache(10, biased=True).select(torch.tensor(kept))
    part = cache.before(position)
    assert part.positions.tolist() == [p for p in sorted(kept) if p < position]
    assert part.next_position == min(position, 10)
    assert part.keys[0].untyped_storage().data_ptr() == cache.keys[0].untyped_storage().data_ptr()
    assert (part is cache) == (position >= 10)


def test_before_refuses_a_negative_position() -> None:
    with pytest.raises(PayloadError, match="Positions start at 0"):
        random_cache(2).before(-1)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.booleans())
def test_extending_in_steps_gives_the_cache_of_all_entries(steps: list[int], biased: bool) -> None:
    cache = random_cache(3, biased=biased)
    pieces = [(list(cache.keys), list(cache.values))]
    for seed, n in enumerate(steps):
        pieces.append(random_entries(n, seed=seed))
        cache = cache.extend(*pieces[-1])
    for layer in range(3):
        assert torch.equal(cache.keys[layer], torch.cat([keys[layer] for keys, _ in pieces], dim=1))
        assert torch.equal(cache.values[layer], torch.cat([values[layer] for _, values in pieces], dim=1))
    total = 3 + sum(steps)
    assert cache.positions.tolist() == list(range(total))
    assert cache.next_position == total
    if biased:
        assert cache.bias is not None
        assert not cache.bias[0][:, 3:].any()


def test_new_entries_of_a_compacted_cache_take_the_next_positions() -> None:
    cache = random_cache(9).select(torch.tensor([0, 4])).extend(*random_entries(2))
    assert cache.positions.tolist() == [0, 4, 9, 10]
    assert cache.next_position == 11


def test_extending_the_tip_copies_nothing_that_is_there() -> None:
    first = random_cache(3).extend(*random_entries(2))
    second = first.extend(*random_entries(2, seed=1))
    assert second.keys[0].data_ptr() == first.keys[0].data_ptr()


@pytest.mark.parametrize("start", ["plain", "arena", "before", "select"])
def test_a_fork_leaves_both_branches_and_their_root_as_they_were(start: str) -> None:
    plain = random_cache(8)
    root = {
        "plain": plain,
        "arena": plain.extend(*random_entries(3)),
        "before": plain.extend(*random_entries(3)).before(5),
        "select": plain.select(torch.tensor([1, 2, 7])),
    }[start]
    held = snapshot(root)
    a = root.extend(*random_entries(4, seed=1))
    held_a = snapshot(a)
    b = root.extend(*random_entries(4, seed=2))
    c = a.extend(*random_entries(2, seed=3))
    b.extend(*random_entries(2, seed=4))
    assert unchanged(root, held)
    assert unchanged(a, held_a)
    assert torch.equal(b.keys[0][:, -4:], random_entries(4, seed=2)[0][0])
    assert torch.equal(c.keys[1][:, :-2], a.keys[1])


def test_a_rewound_cache_that_is_extended_leaves_the_longer_one_alone() -> None:
    longer = random_cache(3).extend(*random_entries(5))
    held = snapshot(longer)
    rewound = longer.before(4).extend(*random_entries(3, seed=9))
    assert unchanged(longer, held)
    assert rewound.positions.tolist() == list(range(7))
    assert torch.equal(rewound.values[2][:, 4:], random_entries(3, seed=9)[1][2])


def test_threads_that_extend_one_cache_get_branches_of_their_own() -> None:
    root = random_cache(6).extend(*random_entries(2))
    held = snapshot(root)
    done: dict[int, KVCache] = {}
    barrier = threading.Barrier(8)

    def grow(seed: int) -> None:
        barrier.wait()
        cache = root
        for step in range(30):
            cache = cache.extend(*random_entries(1, seed=100 * seed + step))
        done[seed] = cache

    threads = [threading.Thread(target=grow, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unchanged(root, held)
    for seed, cache in done.items():
        for step in range(30):
            new = random_entries(1, seed=100 * seed + step)[0]
            assert torch.equal(cache.keys[0][:, 8 + step : 9 + step], new[0])


def test_extending_by_nothing_is_the_cache_itself() -> None:
    cache = random_cache(3)
    assert cache.extend(*random_entries(0)) is cache


def broadcast(keys: list[torch.Tensor], values: list[torch.Tensor]) -> tuple[Any, Any]:
    return [k[:1] for k in keys], [v[:1] for v in values]


@pytest.mark.parametrize(
    "spoil",
    [
        broadcast,
        lambda k, v: (k[:2], v[:2]),
        lambda k, v: (k, v[:2]),
        lambda k, v: ([k[0], k[1][:, :1], k[2]], [v[0], v[1][:, :1], v[2]]),
        lambda k, v: ([k[0][..., :1], *k[1:]], v),
        lambda k, v: ([], []),
    ],
    ids=["heads", "layers", "values", "lengths", "width", "nothing"],
)
def test_extend_refuses_entries_of_other_shapes_and_stays_usable(spoil: Callable[[Any, Any], Any]) -> None:
    cache = random_cache(3).extend(*random_entries(2))
    with pytest.raises(PayloadError, match="can't extend"):
        cache.extend(*spoil(*random_entries(2)))
    longer = cache.extend(*random_entries(2, seed=5))
    assert longer.keys[0].data_ptr() == cache.keys[0].data_ptr()  # the refused entries took no room


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.booleans(), st.booleans())
def test_followed_by_joins_entries_positions_and_biases(n: int, m: int, gap: int, left: bool, right: bool) -> None:
    a, b = random_cache(n, biased=left), random_cache(m, start=n + gap, biased=right, seed=1)
    joined = a.followed_by(b)
    assert joined.positions.tolist() == [*range(n), *range(n + gap, n + gap + m)]
    assert joined.next_position == n + gap + m
    assert torch.equal(joined.keys[2], torch.cat([a.keys[2], b.keys[2]], dim=1))
    assert (joined.bias is not None) == (left or right)
    if joined.bias is not None:
        assert torch.equal(joined.bias[0], torch.cat([a.bias_or_zero()[0], b.bias_or_zero()[0]], dim=1))


@pytest.mark.parametrize(
    "other",
    [random_cache(2, start=4), random_cache(0, start=3), random_cache(2, start=5, layers=((1, 8, 8),))],
    ids=["overlaps", "empty-but-earlier", "other-geometry"],
)
def test_followed_by_refuses_what_does_not_follow(other: KVCache) -> None:
    with pytest.raises(PayloadError):
        random_cache(5).followed_by(other)


def test_to_changes_the_format_of_keys_and_values_only() -> None:
    cache = random_cache(3, biased=True)
    half = cache.to(dtype=torch.bfloat16)
    assert half.keys[0].dtype == half.values[0].dtype == torch.bfloat16
    assert half.bias is not None
    assert half.bias[0].dtype == torch.float32
    assert same_tensor(half.positions, cache.positions)


def test_to_is_the_cache_itself_where_nothing_changes() -> None:
    cache = random_cache(3)
    assert cache.to() is cache
    assert cache.to("cpu", torch.float32) is cache


def test_to_moves_every_layer_wherever_the_first_one_lies() -> None:
    cache = random_cache(3)
    split = KVCache((cache.keys[0], *(k.to("meta") for k in cache.keys[1:])), cache.values, cache.positions, 3)
    assert {k.device.type for k in split.to("meta").keys} == {"meta"}
    mixed = KVCache(cache.keys, tuple(v.half() for v in cache.values), cache.positions, 3)
    assert mixed.to(dtype=torch.float32).values[0].dtype == torch.float32


def test_a_cache_refuses_tensors_that_do_not_fit_each_other() -> None:
    keys, values = map(tuple, random_entries(4))
    positions = torch.arange(4)
    for wrong in (
        lambda: KVCache((), (), positions, 4),
        lambda: KVCache(keys, values[:2], positions, 4),
        lambda: KVCache(keys, values, positions[:3], 4),
        lambda: KVCache((keys[0][0], *keys[1:]), values, positions, 4),
        lambda: KVCache(keys, values, positions, 4, rotary=positions[:3]),
        lambda: KVCache(keys, values, positions, 4, bias=tuple(torch.zeros(1, 4) for _ in keys)),
    ):
        with pytest.raises(PayloadError):
            wrong()


def test_a_cache_whose_holes_are_closed_goes_on_right_behind_its_last_entry() -> None:
    cache = closed(random_cache(10).select(torch.tensor([0, 4, 5, 9])))
    assert (cache.next_position, cache.next_rotary) == (10, 4)
    grown = cache.extend(*random_entries(2))
    assert grown.positions.tolist() == [0, 4, 5, 9, 10, 11]
    assert grown.rotary_positions.tolist() == [0, 1, 2, 3, 4, 5]
    before = grown.before(5)
    assert (before.positions.tolist(), before.next_position, before.next_rotary) == ([0, 4], 5, 2)
    assert grown.before(0).next_rotary == 0
    assert grown.select(torch.tensor([1, 5])).rotary_positions.tolist() == [1, 5]
    assert grown.to(dtype=torch.float16).rotary_positions.tolist() == grown.rotary_positions.tolist()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_closed_and_open_caches_follow_each_other(first: bool, second: bool) -> None:
    left = random_cache(6).select(torch.tensor([0, 2, 5]))
    right = random_cache(4, start=6).select(torch.tensor([1, 3]))
    left = closed(left) if first else left
    right = replace(right, rotary=torch.tensor([6, 7])) if second else right
    joined = left.followed_by(right)
    assert joined.positions.tolist() == [0, 2, 5, 7, 9]
    turned = [0, 1, 2] if first else [0, 2, 5]
    assert joined.rotary_positions.tolist() == [*turned, *([6, 7] if second else [7, 9])]
    assert (joined.rotary is None) == (not first and not second)


def test_changes_of_two_kinds_are_added_up_and_untouched_layers_stay_the_same_tensors() -> None:
    base, one, other = random_cache(4), random_cache(4, seed=1), random_cache(4, seed=2)
    other = replace(other, keys=(base.keys[0], *other.keys[1:]))
    both = overlaid(one, other, base)
    assert both.keys[0] is one.keys[0]
    torch.testing.assert_close(both.values[1], one.values[1] + other.values[1] - base.values[1])
    with pytest.raises(PayloadError, match="same shapes and positions"):
        overlaid(one, random_cache(5), base)
