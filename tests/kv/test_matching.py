"""Attention Matching against a plain reference, head by head, in float64; its two solves against libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from agentflow.kv import matching
from agentflow.kv.matching import attention_scores, fit, mass_weights, refit

SCALE = 0.35


def random_layers(layers=2, heads=4, kv_heads=2, n=6, length=20, dim=8, seed=0):
    torch.manual_seed(seed)
    queries = [2 * torch.randn(heads, n, dim) for _ in range(layers)]
    keys = [torch.randn(kv_heads, length, dim) for _ in range(layers)]
    values = [torch.randn(kv_heads, length, dim) for _ in range(layers)]
    return queries, keys, values


def by_definition(queries, keys, values, kept, ridge, moved=None):
    """One layer and head after the other, in float64: probabilities, box-constrained weights (SciPy), ridge."""
    found = []
    for layer, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        group = q.shape[0] // k.shape[0]
        for h in range(k.shape[0]):
            rows = q[h * group : (h + 1) * group].reshape(-1, q.shape[2]).double()
            logits = SCALE * rows @ k[h].double().T
            p = torch.softmax(logits, dim=-1)
            a, target = p[:, kept], p @ v[h].double()
            if moved is not None:
                there = moved[0][layer][h * group : (h + 1) * group].reshape(-1, q.shape[2]).double()
                met = SCALE * there @ moved[1][layer][h].double().T
                a = torch.exp(met - torch.logsumexp(logits, dim=-1, keepdim=True))
            pull = np.sqrt(1e-3 * float((a.T @ a).diagonal().max()))
            stacked = np.vstack([a.numpy(), pull * np.eye(len(kept))])
            wanted = np.concatenate([np.ones(len(a)), pull * np.ones(len(kept))])
            w = torch.from_numpy(lsq_linear(stacked, wanted, bounds=(0.1, 20.0), tol=1e-12).x)
            x = a * w / (a * w).sum(-1, keepdim=True)
            gram = x @ x.T
            gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
            own = v[h, kept].double()
            made = own + x.T @ torch.linalg.solve(gram, target - x @ own)
            found.append((w.log(), made))
    return found


@pytest.mark.parametrize("shape", [{}, {"n": 1}, {"heads": 2}, {"kv_heads": 1}, {"n": 40, "length": 12}])
def test_batched_fits_equal_the_reference_head_by_head(shape, monkeypatch):
    monkeypatch.setattr(matching, "STEPS", 3000)
    queries, keys, values = random_layers(**shape)
    kept = torch.tensor([0, 2, 3, 7, 9, 11])
    ours = fit(queries, keys, values, kept, SCALE, held_out=0)
    theirs = by_definition(queries, keys, values, kept, 0.01)
    kv_heads = keys[0].shape[0]
    for number, (beta, made) in enumerate(theirs):
        layer, head = divmod(number, kv_heads)
        assert torch.allclose(ours.bias[layer][head].double(), beta, atol=0.05)
        assert torch.allclose(ours.values[layer][head].double(), made, atol=0.05)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_what_will_meet_elsewhere_is_fitted_as_it_will_meet(kv_heads, monkeypatch):
    monkeypatch.setattr(matching, "STEPS", 3000)
    queries, keys, values = random_layers(kv_heads=kv_heads)
    kept = torch.tensor([0, 2, 3, 7, 9, 11])
    moved = [q.roll(1, dims=2) for q in queries], [k[:, kept] + 0.1 * torch.randn(kv_heads, 6, 8) for k in keys]
    ours = fit(queries, keys, values, kept, SCALE, moved=moved, held_out=0)
    for number, (beta, made) in enumerate(by_definition(queries, keys, values, kept, 0.01, moved)):
        layer, head = divmod(number, kv_heads)
        assert torch.allclose(ours.bias[layer][head].double(), beta, atol=0.05)
        assert torch.allclose(ours.values[layer][head].double(), made, atol=0.05)
    stayed = fit(queries, keys, values, kept, SCALE, moved=(queries, [k[:, kept] for k in keys]))
    plain = fit(queries, keys, values, kept, SCALE)
    assert torch.allclose(torch.stack(stayed.values), torch.stack(plain.values), atol=1e-3)
    assert stayed.output_error == pytest.approx(plain.output_error, rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), rows=st.integers(1, 12), kept=st.integers(1, 10))
def test_mass_weights_reach_the_least_squares_of_scipy(seed, rows, kept):
    torch.manual_seed(seed)
    a = torch.rand(rows, kept) / kept
    ours = mass_weights(a, (0.1, 20.0), pull=0.0, steps=4000).double().numpy()
    theirs = lsq_linear(a.double().numpy(), np.ones(rows), bounds=(0.1, 20.0)).x
    loss = [float(np.square(a.double().numpy() @ w - 1).sum()) for w in (ours, theirs)]
    assert loss[0] <= loss[1] + 1e-3
    assert ours.min() >= 0.1 - 1e-6
    assert ours.max() <= 20.0 + 1e-4


def test_the_dual_ridge_equals_the_primal_one():
    torch.manual_seed(0)
    x, values, target = torch.rand(5, 9).double(), torch.randn(9, 4).double(), torch.randn(5, 4).double()
    lam = 0.01 * float((x @ x.T).diagonal().mean())
    primal = values + torch.linalg.solve(x.T @ x + lam * torch.eye(9, dtype=torch.float64), x.T @ (target - x @ values))
    assert torch.allclose(refit(x, values, target, 0.01), primal, atol=1e-8)


def test_batched_cholesky_on_two_threads_equals_one():
    torch.manual_seed(0)
    x, values, target = torch.rand(6, 200, 300), torch.randn(6, 300, 16), torch.randn(6, 200, 16)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(refit(x, values, target, 0.01))
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(found[0], found[1], atol=1e-3)


def test_scores_are_the_root_mean_square_of_the_probabilities():
    queries, keys, _ = random_layers()
    scores = attention_scores(queries, keys, SCALE)
    for layer in range(2):
        for head in range(4):
            p = torch.softmax(SCALE * queries[layer][head] @ keys[layer][head // 2].T, dim=-1)
            assert torch.allclose(scores[layer, head], p.square().mean(0).sqrt(), atol=1e-6)


def test_small_blocks_change_nothing(monkeypatch):
    queries, keys, values = random_layers(layers=5)
    kept = torch.arange(0, 20, 3)
    whole, scores = fit(queries, keys, values, kept, SCALE), attention_scores(queries, keys, SCALE)
    monkeypatch.setattr(matching, "BLOCK_BYTES", 1)
    parts = fit(queries, keys, values, kept, SCALE)
    assert torch.allclose(torch.stack(whole.values), torch.stack(parts.values), atol=1e-5)
    assert torch.allclose(torch.stack(whole.bias), torch.stack(parts.bias), atol=1e-5)
    assert torch.allclose(scores, attention_scores(queries, keys, SCALE), atol=1e-6)


def test_layers_of_different_shapes_are_fitted_apart():
    q1, k1, v1 = random_layers(layers=1)
    q2, k2, v2 = random_layers(layers=1, heads=6, kv_heads=3, seed=1)
    kept = torch.tensor([1, 5, 8])
    both = fit(q1 + q2, k1 + k2, v1 + v2, kept, SCALE)
    alone = fit(q2, k2, v2, kept, SCALE)
    assert torch.allclose(both.values[1], alone.values[0], atol=1e-5)


def test_keeping_everything_changes_nothing():
    queries, keys, values = random_layers()
    found = fit(queries, keys, values, torch.arange(20), SCALE)
    assert all(torch.allclose(b, torch.zeros_like(b), atol=1e-4) for b in found.bias)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found.values, values, strict=True))
    assert found.output_error < 1e-4
    assert found.mass_error < 1e-4


def test_fitting_lowers_the_error_on_the_queries_it_was_fitted_to():
    queries, keys, values = random_layers(n=12, length=60)
    kept = torch.arange(0, 60, 4)
    drop = fit(queries, keys, values, kept, SCALE, bias=False, refit_values=False, held_out=0)
    beta = fit(queries, keys, values, kept, SCALE, refit_values=False, held_out=0)
    both = fit(queries, keys, values, kept, SCALE, held_out=0)
    assert both.output_error < 0.5 * drop.output_error
    assert beta.mass_error < drop.mass_error
    assert drop.bias is None
    assert all(torch.equal(a, v[:, kept]) for a, v in zip(drop.values, values, strict=True))


def test_held_out_queries_take_no_part_in_the_fit():
    queries, keys, values = random_layers(n=8)
    kept = torch.tensor([0, 4, 9])
    reference = fit(queries, keys, values, kept, SCALE)
    for q in queries:
        q[:, 3::4] *= -1.0
    changed = fit(queries, keys, values, kept, SCALE)
    assert torch.allclose(torch.stack(reference.values), torch.stack(changed.values), atol=1e-6)
    assert changed.output_error != reference.output_error


@pytest.mark.parametrize("kept", [[3], [0, 19], list(range(19))])
def test_one_kept_and_almost_all_kept_stay_finite(kept):
    queries, keys, values = random_layers(n=2)
    found = fit(queries, keys, values, torch.tensor(kept), SCALE)
    assert all(bool(torch.isfinite(t).all()) for t in (*found.bias, *found.values))


def test_duplicated_keys_and_extreme_logits_stay_finite():
    queries, keys, values = random_layers()
    keys = [torch.cat([k[:, :10], k[:, :10]], dim=1) * 40 for k in keys]
    found = fit(queries, keys, values, torch.tensor([0, 10, 3, 13]).sort().values, SCALE)
    assert all(bool(torch.isfinite(t).all()) for t in (*found.bias, *found.values))


def test_each_head_may_keep_its_own_positions():
    queries, keys, values = random_layers()
    shared = torch.tensor([2, 5, 11])
    each = shared.expand(2, 2, 3)
    a, b = fit(queries, keys, values, shared, SCALE), fit(queries, keys, values, each, SCALE)
    assert torch.allclose(torch.stack(a.values), torch.stack(b.values))


def test_what_a_cache_adds_to_its_logits_is_part_of_the_problem():
    """A bias of log 2 is the same as having the position twice; −inf the same as not having it."""
    queries, keys, values = random_layers()
    minus = [torch.zeros(2, 20) for _ in keys]
    for b in minus:
        b[:, 5] = float("-inf")
        b[:, 7] = np.log(2.0)
    without = [i for i in range(20) if i != 5]
    order = [*without, 7]
    kept = torch.tensor([0, 3, 7, 11])
    plain_kept = torch.tensor([without.index(i) for i in (0, 3, 7, 11)])
    doubled = [[t[:, order] for t in side] for side in (keys, values)]
    given = fit(queries, keys, values, kept, SCALE, biases=minus, bias=False, refit_values=False)
    plain = fit(queries, *doubled, plain_kept, SCALE, bias=False, refit_values=False)
    assert given.bias is not None
    assert all(torch.equal(b, m[:, kept]) for b, m in zip(given.bias, minus, strict=True))
    scores = attention_scores(queries, keys, SCALE, minus)
    twice = attention_scores(queries, doubled[0], SCALE)
    assert bool((scores[..., 5] == 0).all())
    assert torch.allclose(scores[..., 0], twice[..., 0], atol=1e-6)
    assert torch.allclose(scores[..., 7], 2 * twice[..., without.index(7)], atol=1e-6)
    fitted = fit(queries, keys, values, kept, SCALE, biases=minus)
    assert all(bool(torch.isfinite(t).all()) for t in (*fitted.bias, *fitted.values))
    assert fitted.output_error < plain.output_error


def test_a_head_that_sees_nothing_stays_finite():
    queries, keys, values = random_layers()
    nothing = [torch.full((2, 20), float("-inf")) for _ in keys]
    found = fit(queries, keys, values, torch.tensor([1, 4]), SCALE, biases=nothing)
    assert all(bool(torch.isfinite(v).all()) for v in found.values)
    assert bool((attention_scores(queries, keys, SCALE, nothing) == 0).all())


def test_blocks_that_do_not_fit_into_memory_are_halved(monkeypatch):
    queries, keys, values = random_layers(layers=5)
    kept = torch.arange(0, 20, 3)
    whole, scores = fit(queries, keys, values, kept, SCALE), attention_scores(queries, keys, SCALE)
    asked, real = [], matching._logits

    def small(queries, keys, layers, scale, biases):
        asked.append(len(layers))
        if len(layers) > 2:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")
        return real(queries, keys, layers, scale, biases)

    monkeypatch.setattr(matching, "_logits", small)
    parts = fit(queries, keys, values, kept, SCALE)
    assert asked == [5, 2, 3, 1, 2]
    assert torch.allclose(torch.stack(whole.values), torch.stack(parts.values), atol=1e-5)
    assert torch.allclose(scores, attention_scores(queries, keys, SCALE), atol=1e-6)
