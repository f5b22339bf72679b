from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv import quantize as module
from agentflow.kv.cache import KVCache
from agentflow.kv.packing import Grouped, group_quantize
from agentflow.kv.quantize import quantize
from agentflow.kv.wire import write_payload
from tests.kv.samples import outlier_keys, payload_of, random_cache, random_entries, same_tensor

SMOL = ((3, 64, 64),) * 30
BITS = st.sampled_from([4, 8])


def reference(x: np.ndarray, bits: int, axis: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Number by number in float64: what the codes must stand for, and how far off each may be."""
    out, bound = np.zeros_like(x), np.zeros_like(x)
    moved, out_m, bound_m = (np.moveaxis(a, axis, -1) for a in (x, out, bound))
    for place in np.ndindex(moved.shape[:-1]):
        row = moved[place]
        for start in range(0, len(row), group):
            part = row[start : start + group]
            zero = np.float64(np.float16(part.min()))
            scale = np.float64(np.float16(np.float32(max(part.max() - zero, 0)) / np.float32(2**bits - 1)))
            for i, value in enumerate(part):
                code = min(max(round((value - zero) / scale), 0), 2**bits - 1) if scale else 0
                out_m[place][start + i] = zero + scale * code
                half = 2.0**-11
                most = max(abs(part.min()), abs(part.max()))
                bound_m[place][start + i] = 0.5 * scale + half * (most + scale * (2**bits - 1)) + 1e-6
    return out, bound


@given(
    bits=BITS,
    axis=st.sampled_from([-1, -2]),
    shape=st.tuples(st.integers(1, 3), st.integers(0, 13), st.integers(1, 11)),
    group=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_codes_stand_for_what_a_number_by_number_reference_says(
    bits: int, axis: int, shape: tuple[int, int, int], group: int, seed: int
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3 + 0.5
    back = group_quantize(x, bits, axis, group).restore(torch.float64).numpy()
    expected, bound = reference(x.double().numpy(), bits, axis, group)
    off = np.abs(back - expected)
    steps = bound * 2  # a tie may round to the neighbouring code in float32
    assert (off <= steps + 1e-6).all()
    assert off.size < 50 or np.mean(off > 1e-4 * (1 + np.abs(expected))) < 0.05
    assert (np.abs(back - x.double().numpy()) <= bound).all()


@given(BITS, st.integers(1, 5), st.integers(0, 9), st.integers(1, 9))
def test_packed_codes_have_the_stated_size_and_check_themselves(bits: int, heads: int, n: int, dim: int) -> None:
    grouped = group_quantize(torch.randn(heads, n, dim), bits, -2, 4)
    assert grouped.codes.shape == (heads, n, dim if bits == 8 else (dim + 1) // 2)
    assert grouped.scale.shape == (heads, -(-n // 4), dim)
    grouped.check((heads, n))
    with pytest.raises(ValueError, match="are no"):
        grouped.check((heads, n + 1))


def test_equal_numbers_and_the_ends_of_a_group_are_kept() -> None:
    x = torch.tensor([[[1.5, 1.5, 1.5, 1.5], [-2.0, 0.3, 0.4, 5.5]]])
    back = group_quantize(x, 4, -1, 4).restore(torch.float32)
    assert torch.equal(back[0, 0], x[0, 0])
    assert back[0, 1, [0, 3]].tolist() == [-2.0, 5.5]


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e4, 1e6, 1e30])
def test_numbers_of_any_size_keep_their_relative_accuracy(size: float) -> None:
    x = torch.randn(2, 64, 8) * size
    back = group_quantize(x, 8, -2, 64).restore(torch.float32)
    assert float((back - x).double().norm() / x.double().norm()) < 0.01


@pytest.mark.parametrize("wrong", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite_are_refused(wrong: float) -> None:
    cache = random_cache(9)
    cache.keys[1][0, 5, 0] = wrong
    with pytest.raises(PayloadError, match="infinite"):
        quantize(cache)


@pytest.mark.parametrize("how", [{"bits": 3}, {"group": 0}, {"sinks": -1}])
def test_settings_that_make_no_sense_are_refused(how: dict[str, int]) -> None:
    with pytest.raises(PayloadError, match="can't be quantised"):
        quantize(random_cache(3), **how)  # type: ignore[arg-type]


def error(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> float:
    """Relative, root mean square over all layers."""
    x, y = torch.cat([t.double().flatten() for t in a]), torch.cat([t.double().flatten() for t in b])
    return float((x - y).norm() / x.norm())


@pytest.mark.parametrize(("bits", "bound"), [(4, 0.11), (8, 0.0065)])
def test_random_caches_come_back_within_the_stated_error(bits: int, bound: float) -> None:
    cache = random_cache(300, layers=SMOL[:4])
    back = quantize(cache, bits).dequantize()  # type: ignore[arg-type]
    assert error(cache.keys, back.keys) < bound
    assert error(cache.values, back.values) < bound


@pytest.mark.parametrize(("bits", "bound"), [(4, 0.036), (8, 0.0022)])
def test_channels_of_large_keys_do_not_spoil_the_others(bits: int, bound: float) -> None:
    keys = tuple(outlier_keys(3, 500, 64, seed) for seed in range(4))
    cache = KVCache.stacked(keys, random_entries(500, layers=SMOL[:4])[1])
    back = quantize(cache, bits).dequantize()  # type: ignore[arg-type]
    assert error(keys, back.keys) < bound
    per_token = tuple(group_quantize(k, bits, -1, 64).restore(torch.float32) for k in keys)  # type: ignore[arg-type]
    ordinary = [k.abs().amax(1, keepdim=True) < 8 for k in keys]

    def of_ordinary(layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(k * mask for k, mask in zip(layers, ordinary, strict=True))

    ours = error(of_ordinary(keys), of_ordinary(back.keys))
    assert ours < 0.25 * error(of_ordinary(keys), of_ordinary(per_token))


@pytest.mark.parametrize(("bits", "least"), [(4, 0.99), (8, 0.9999)])
def test_attention_over_a_quantised_cache_is_that_over_the_original(bits: int, least: float) -> None:
    keys = outlier_keys(3, 256, 64)
    values = random_entries(256, layers=SMOL[:1])[1][0]
    back = quantize(KVCache.stacked([keys], [values]), bits).dequantize()  # type: ignore[arg-type]
    queries = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(1))

    def attend(k: Tensor, v: Tensor) -> Tensor:
        return (queries @ k.mT / 8).softmax(-1) @ v

    a, b = attend(keys, values), attend(back.keys[0], back.values[0])
    assert float(torch.cosine_similarity(a, b, dim=-1).mean()) > least


@pytest.mark.parametrize(("bits", "share"), [(4, 0.30), (8, 0.56)])
def test_a_file_takes_its_share_of_the_16_bit_cache(bits: int, share: float, tmp_path: Path) -> None:
    cache = random_cache(2048, dtype=torch.bfloat16, layers=SMOL)
    payload = payload_of(cache).quantized(bits)  # type: ignore[arg-type]
    path = tmp_path / "p"
    write_payload(payload, path)
    assert path.stat().st_size <= share * cache.nbytes
    assert payload.nbytes <= path.stat().st_size


@given(n=st.integers(0, 70), sinks=st.integers(0, 6), group=st.sampled_from([1, 5, 64]), bits=BITS)
def test_positions_bias_and_sinks_are_exact_at_any_length(n: int, sinks: int, group: int, bits: int) -> None:
    cache = random_cache(n, dtype=torch.bfloat16, biased=True)
    small = quantize(cache, bits, group=group, sinks=sinks)  # type: ignore[arg-type]
    back = small.dequantize()
    assert len(small) == len(back) == n
    assert (back.dtype, back.geometry, small.geometry) == (torch.bfloat16, cache.geometry, cache.geometry)
    assert torch.equal(back.positions, cache.positions)
    assert back.next_position == cache.next_position
    assert back.bias is not None
    assert cache.bias is not None
    assert torch.equal(back.bias[1], cache.bias[1])
    assert same_tensor(back.keys[0][:, :sinks], cache.keys[0][:, :sinks])
    assert same_tensor(back.values[2][:, :sinks], cache.values[2][:, :sinks])
    parts = [*small.keys, *small.values]
    expected = sum(p.codes.nbytes + p.scale.nbytes + p.zero.nbytes for p in parts)
    assert small.nbytes == expected + small.sinks.nbytes + sum(b.nbytes for b in cache.bias)


def test_sinks_are_positions_and_not_whatever_comes_first() -> None:
    later = random_cache(9).select(torch.tensor([2, 5, 8]))
    assert len(quantize(later, sinks=4).sinks) == 1
    assert len(quantize(random_cache(5, start=100), sinks=4).sinks) == 0


def test_a_quantised_cache_holds_nothing_of_the_original_and_leaves_it_alone() -> None:
    cache = random_cache(20)
    held = [k.clone() for k in cache.keys]
    small = quantize(cache)
    first = small.dequantize().keys[0].clone()
    assert all(torch.equal(a, b) for a, b in zip(cache.keys, held, strict=True))
    cache.keys[0].zero_()
    assert torch.equal(small.dequantize().keys[0], first)


def test_layers_of_different_shapes_and_stacks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = ((2, 8, 8), (2, 8, 8), (1, 6, 4), (2, 8, 8), (2, 8, 8))
    cache = random_cache(33, layers=layers)
    whole = quantize(cache, 4)
    monkeypatch.setattr(module, "_STACK_BYTES", 1)
    single = quantize(cache, 4)

    def parts(of: Grouped) -> list[Tensor]:
        return [of.codes, of.scale, of.zero]

    for a, b in zip((*whole.keys, *whole.values), (*single.keys, *single.values), strict=True):
        assert all(same_tensor(x, y) for x, y in zip(parts(a), parts(b), strict=True))


def test_a_restored_cache_can_grow() -> None:
    back = quantize(random_cache(9)).dequantize().extend(*random_entries(2))
    assert back.positions.tolist() == list(range(11))


def test_half_precision_caches_are_restored_in_any_format() -> None:
    small = quantize(random_cache(9, dtype=torch.float16))
    assert small.dequantize().dtype == torch.float16
    assert small.dequantize(torch.float32).keys[0].dtype == torch.float32
    assert small.dequantize(torch.float32).values[0].dtype == torch.float32
