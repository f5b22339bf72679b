from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentflow.kv.cache import KVCache
from agentflow.kv.rope import Rope, shift, strip
from tests.kv.samples import closed, random_cache, random_entries

LAYERS = ((2, 8, 8), (2, 8, 8), (2, 8, 8))
STEPS = st.integers(-4000, 4000)


def rope(dim: int = 8, *, interleaved: bool = False) -> Rope:
    return Rope(10000.0 ** -(torch.arange(0, dim, 2).double() / dim), interleaved)


ROPES = [rope(), rope(interleaved=True), rope(4)]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=2e-5)


@given(STEPS, STEPS, st.sampled_from(ROPES))
def test_two_turns_are_one_turn_by_their_sum(a: int, b: int, kind: Rope) -> None:
    keys = torch.randn(2, 5, 8)
    assert close(kind.rotate(kind.rotate(keys, a), b), kind.rotate(keys, a + b))


@given(STEPS, st.sampled_from(ROPES))
def test_turning_back_gives_the_keys_back_and_lengths_never_change(delta: int, kind: Rope) -> None:
    keys = torch.randn(2, 5, 8)
    turned = kind.rotate(keys, delta)
    assert close(kind.rotate(turned, -delta), keys)
    assert close(turned.norm(dim=-1), keys.norm(dim=-1))


def test_pairs_are_turned_by_position_times_frequency() -> None:
    keys = torch.randn(1, 3, 4, dtype=torch.float64).float()
    for interleaved in (False, True):
        kind = rope(4, interleaved=interleaved)
        pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
        turned = kind.rotate(keys, torch.tensor([0, 3, -2]))
        for t, steps in enumerate((0, 3, -2)):
            for (a, b), frequency in zip(pairs, kind.inv_freq.tolist(), strict=True):
                expected = (
                    complex(*keys[0, t, [a, b]].tolist()) * torch.exp(torch.tensor(1j * steps * frequency)).item()
                )
                assert abs(complex(*turned[0, t, [a, b]].tolist()) - expected) < 1e-5


def test_dimensions_beyond_the_rotary_ones_do_not_change() -> None:
    keys = torch.randn(2, 5, 8)
    turned = rope(4).rotate(keys, 17)
    assert torch.equal(turned[..., 4:], keys[..., 4:])
    assert not torch.equal(turned[..., :4], keys[..., :4])


def test_half_precision_keys_are_turned_in_full_precision_and_rounded_once() -> None:
    keys = torch.randn(2, 5, 8).to(torch.bfloat16)
    turned = rope().rotate(keys, 1234)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rope().rotate(keys.float(), 1234).to(torch.bfloat16))


def test_large_positions_lose_no_angle() -> None:
    keys = torch.randn(1, 1, 8)
    far = rope().rotate(rope().rotate(keys, 1_000_000), -1_000_000)
    assert close(far, keys)


def test_shift_moves_positions_turns_keys_and_shares_values() -> None:
    cache = random_cache(5, layers=LAYERS, biased=True)
    ropes = [rope(), None, rope(4)]
    moved = shift(cache, 7, ropes)
    assert moved.positions.tolist() == list(range(7, 12))
    assert moved.next_position == 12
    assert torch.equal(moved.keys[0], rope().rotate(cache.keys[0], 7))
    assert moved.keys[1] is cache.keys[1]
    assert all(a is b for a, b in zip(moved.values, cache.values, strict=True))
    assert moved.bias is cache.bias
    assert shift(cache, 0, ropes) is cache


def test_a_shifted_cache_that_grows_leaves_the_original_alone() -> None:
    cache = random_cache(3, layers=LAYERS).extend(*random_entries(2, layers=LAYERS))
    held = [v.clone() for v in cache.values]
    moved = shift(cache, 2, [rope()] * 3).extend(*random_entries(3, seed=1, layers=LAYERS))
    cache.extend(*random_entries(3, seed=2, layers=LAYERS))
    assert all(torch.equal(a, b) for a, b in zip(cache.values, held, strict=True))
    assert torch.equal(moved.values[0][:, 5:], random_entries(3, seed=1, layers=LAYERS)[1][0])


def test_strip_gives_the_keys_before_rope_also_of_a_compacted_cache() -> None:
    plain = torch.randn(2, 6, 8)
    positions = torch.tensor([0, 2, 3, 9, 40, 500])
    keys = rope().rotate(plain, positions)
    cache = KVCache((keys, plain), (plain, plain), positions, 501)
    stripped = strip(cache, [rope(), None])
    assert close(stripped[0], plain)
    assert stripped[1] is plain


def test_each_head_can_be_turned_by_steps_of_its_own() -> None:
    keys, steps = torch.randn(2, 5, 8), torch.tensor([[1, 2, 3, 4, 5], [0, 0, -7, 1, 900]])
    turned = rope().rotate(keys, steps)
    assert torch.equal(turned, torch.stack([rope().rotate(keys[h], steps[h]) for h in range(2)]))


def test_a_cache_behind_a_closed_one_is_turned_less_far_than_it_is_moved() -> None:
    first = closed(random_cache(9, layers=LAYERS).select(torch.tensor([0, 5])))
    second = random_cache(3, layers=LAYERS)
    moved = shift(second, first.next_position, [rope()] * 3, rotary=first.next_rotary)
    assert moved.positions.tolist() == [9, 10, 11]
    assert moved.rotary_positions.tolist() == [2, 3, 4]
    assert torch.equal(moved.keys[0], shift(second, 2, [rope()] * 3).keys[0])
    assert close(strip(moved, [rope()] * 3)[0], strip(second, [rope()] * 3)[0])
