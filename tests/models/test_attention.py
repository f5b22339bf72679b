"""The attention function against its definition in float64, over random shapes, prefixes, biases and windows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.kv.cache import KVCache
from agentflow.models import partial
from agentflow.models.attention import attention
from agentflow.models.plan import Plan, Segment, planned

KV_HEADS, DIM = 2, 8


def random_cache(length: int, *, start: int = 0, bias: bool = False, holes: bool = False) -> KVCache:
    cache = KVCache.stacked([torch.randn(KV_HEADS, length, DIM)], [torch.randn(KV_HEADS, length, DIM)], start)
    if holes and length > 2:
        cache = cache.select(torch.randperm(length)[: length // 2 + 1])
    if bias:
        cache = KVCache(
            cache.keys, cache.values, cache.positions, cache.next_position, (torch.randn(KV_HEADS, len(cache)),)
        )
    return cache


def by_definition(query, key, value, plan, *, scale, window, softcap, sink):
    """Row by row, head by head, key by key, in float64."""
    b, heads, n, d = query.shape
    out = torch.zeros(b, n, heads, d, dtype=torch.float64)
    group = heads // KV_HEADS
    m = key.shape[2]
    for row in range(b):
        for h in range(heads):
            kv = h // group
            for i in range(n):
                q, at = query[row, h, i].double(), int(plan.positions[row, m - n + i])
                logits, values = [], []
                for segment in plan.segments:
                    if segment.rows is not None and row not in segment.rows:
                        continue
                    cache = segment.cache
                    for t in range(len(cache)):
                        if window is None or at - int(cache.positions[t]) < window:
                            logit = float(q @ cache.keys[0][kv, t].double()) * scale
                            logit = softcap * float(torch.tanh(torch.tensor(logit / softcap))) if softcap else logit
                            logits.append(logit + (float(cache.bias[0][kv, t]) if cache.bias else 0.0))
                            values.append(cache.values[0][kv, t].double())
                for t in range(m - n + i + 1):
                    real = plan.valid is None or bool(plan.valid[row, t]) or t == m - n + i
                    if real and (window is None or at - int(plan.positions[row, t]) < window):
                        logit = float(q @ key[row, kv, t].double()) * scale
                        logit = softcap * float(torch.tanh(torch.tensor(logit / softcap))) if softcap else logit
                        logits.append(logit)
                        values.append(value[row, kv, t].double())
                weights = torch.tensor([*logits, *([float(sink[h])] if sink is not None else [])], dtype=torch.float64)
                weights = weights.softmax(0)[: len(logits)]
                out[row, i, h] = weights @ torch.stack(values)
    return out


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.sampled_from([1, 3]),
    n=st.integers(1, 5),
    earlier=st.integers(0, 3),
    lengths=st.lists(st.integers(1, 7), max_size=4),
    standing=st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=4, max_size=4),
    window=st.sampled_from([None, 3, 6]),
    softcap=st.sampled_from([None, 5.0]),
    with_sink=st.booleans(),
    bias=st.booleans(),
    holes=st.booleans(),
    everyone=st.booleans(),
    pads=st.booleans(),
)
def test_any_plan_equals_the_definition(
    seed, rows, n, earlier, lengths, standing, window, softcap, with_sink, bias, holes, everyone, pads
):
    torch.manual_seed(seed)
    m = n + earlier
    segments = [
        Segment(random_cache(length, bias=bias, holes=holes), None if everyone or rows < 3 else tuple(on))
        for length, on in zip(lengths, standing, strict=False)
    ]
    start = max((s.cache.next_position for s in segments), default=0)
    positions = torch.arange(start, start + m).repeat(rows, 1)
    valid = None
    if pads and m > 1:
        valid = torch.ones(rows, m, dtype=torch.bool)
        valid[0, : m - 1] = False  # a row whose only token is the last
    plan = Plan(segments, positions, valid)
    query, key = torch.randn(rows, 4, n, DIM), torch.randn(rows, KV_HEADS, m, DIM)
    value = torch.randn_like(key)
    sink = torch.randn(4) if with_sink else None
    with planned(plan):
        got, _ = attention(
            SimpleNamespace(layer_idx=0), query, key, value,
            scaling=0.5, sliding_window=window, softcap=softcap, s_aux=sink,
        )  # fmt: skip
    wanted = by_definition(query, key, value, plan, scale=0.5, window=window, softcap=softcap, sink=sink)
    real = torch.ones(rows, n, dtype=torch.bool) if valid is None else valid[:, -n:]
    assert torch.allclose(got.double()[real], wanted[real], atol=1e-5)


def test_the_plain_path_equals_the_fused_one_in_chunks_too(monkeypatch):
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 9, DIM), torch.randn(2, 4, 9, DIM)
    fused = partial.forward(query, key, key, None, True, 0.3, None)
    monkeypatch.setattr(partial, "_flash", None)
    monkeypatch.setattr(partial, "PLAIN_CHUNK", 2 * 4 * 9 * 2)
    plain = partial.forward(query, key, key, None, True, 0.3, None)
    assert torch.allclose(fused[0], plain[0], atol=1e-6)
    assert torch.allclose(fused[1], plain[1], atol=1e-6)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(
    ("standing", "marks"),
    [
        ([None], {}),
        ([(2, 0), (1,)], {"bias": True}),
        ([(1,), (0, 2), None], {"holes": True}),
        ([(1,)], {"window": 4}),
    ],
    ids=["shared", "biased prefixes of different rows", "two waves with holes", "window, and rows without a prefix"],
)
def test_gradients_of_queries_keys_and_values_are_those_of_finite_differences(standing, marks, sink):
    torch.manual_seed(3)
    window = marks.get("window")
    made = {name: mark for name, mark in marks.items() if name != "window"}
    segments = [Segment(random_cache(5 + 2 * n, **made).to(dtype=torch.float64), r) for n, r in enumerate(standing)]
    start = max(s.cache.next_position for s in segments)
    valid = torch.ones(3, 4, dtype=torch.bool)
    valid[1, 0] = False
    query, own = (
        torch.randn(3, 4, 4, DIM, dtype=torch.float64),
        torch.randn(2, 3, KV_HEADS, 4, DIM, dtype=torch.float64),
    )
    sinks = torch.randn(4, dtype=torch.float64) if sink else None
    taken = []

    def attended(query, own, *prefixes):
        placed = [
            Segment(replace(s.cache, keys=(kv[0],), values=(kv[1],), _arena=None), s.rows)
            for s, kv in zip(segments, prefixes, strict=True)
        ]
        plan = Plan(placed, torch.arange(start, start + 4).repeat(3, 1), valid)
        with planned(plan):
            out, _ = attention(
                SimpleNamespace(layer_idx=0), query, own[0], own[1], scaling=0.5, sliding_window=window, s_aux=sinks
            )
        turned = out.grad_fn.next_functions[0][0]  # out is contiguous, in the order that models read it
        taken.append(type(turned.next_functions[0][0]).__name__)
        return out[valid]

    inputs = [query, own, *(torch.stack([s.cache.keys[0], s.cache.values[0]]) for s in segments)]
    assert torch.autograd.gradcheck(attended, [t.requires_grad_() for t in inputs], fast_mode=True)
    assert set(taken) == {"_TrainedBackward"}, "the fused kernels"


def test_gradients_reach_a_prefix():
    """Adapters are trained through the attention of a frozen model."""
    cache = random_cache(4)
    key = cache.keys[0].clone().requires_grad_()
    cache = KVCache((key,), cache.values, cache.positions, cache.next_position)
    plan = Plan([Segment(cache)], torch.tensor([[4, 5]]))
    query = torch.randn(1, 4, 2, DIM, requires_grad=True)
    own = torch.randn(1, KV_HEADS, 2, DIM)
    with planned(plan):
        out, _ = attention(SimpleNamespace(layer_idx=0), query, own, own)
    out.sum().backward()
    assert key.grad is not None
    assert float(key.grad.abs().sum()) > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_and_keeps_its_type(dtype):
    torch.manual_seed(1)
    cache = random_cache(6)
    query, own = torch.randn(2, 4, 3, DIM), torch.randn(2, KV_HEADS, 3, DIM)
    positions = torch.arange(6, 9).repeat(2, 1)
    with planned(Plan([Segment(cache)], positions)):
        full, _ = attention(SimpleNamespace(layer_idx=0), query, own, own)
    with planned(Plan([Segment(cache.to(dtype=dtype))], positions)):
        half, _ = attention(SimpleNamespace(layer_idx=0), query.to(dtype), own.to(dtype), own.to(dtype))
    assert half.dtype == dtype
    assert torch.allclose(full, half.float(), atol=0.05)
