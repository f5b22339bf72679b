"""Which positions stay: thresholds and their degenerate cases, smoothing, sentences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentflow.kv.keeping import Keep, by_segment, shared_score, smooth, standardised


def test_mad_keeps_what_stands_out_of_the_middle():
    score = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 100])
    for t in (-1.0, 0.0, 1.0, 2.0):
        median, mad = score.median(), (score - score.median()).abs().median()
        assert Keep(t=t, sinks=0).count(score) == max(1, int((score > median + t * mad).sum()))


def test_a_higher_t_never_keeps_more():
    score = torch.rand(200, generator=torch.Generator().manual_seed(0))
    counts = [Keep(t=t, sinks=2).count(score) for t in (-1.0, 0.0, 1.0, 2.0, 4.0)]
    assert counts == sorted(counts, reverse=True)


def test_without_spread_only_what_is_above_the_middle_stays():
    score = torch.ones(50)
    score[[7, 30]] = 2.0
    assert Keep(t=1.0, sinks=0).positions(score).tolist() == [7, 30]
    assert Keep(t=1.0, sinks=3).count(torch.zeros(50)) == 4


@given(
    length=st.integers(1, 80),
    threshold=st.sampled_from(["mad", "ratio", "top_k"]),
    ratio=st.floats(0.01, 1.0),
    top_k=st.integers(1, 100),
    sinks=st.integers(0, 6),
    least=st.integers(1, 100),
    most=st.none() | st.integers(1, 100),
)
def test_any_setting_keeps_sinks_in_order_and_within_bounds(length, threshold, ratio, top_k, sinks, least, most):
    score = torch.rand(length, generator=torch.Generator().manual_seed(length))
    kept = Keep(threshold, ratio=ratio, top_k=top_k, sinks=sinks, least=least, most=most).positions(score).tolist()
    assert kept == sorted(set(kept))
    low = min(length, max(sinks + 1, least))
    assert low <= len(kept) <= (length if most is None else max(low, most))
    assert kept[: min(sinks, length)] == list(range(min(sinks, length)))


def test_layers_and_weights_decide_who_votes():
    scores = torch.zeros(3, 2, 4)
    scores[0, :, 0], scores[2, 1, 3] = 9.0, 1.0
    assert int(shared_score(scores).argmax()) == 0
    assert int(shared_score(scores, first_layer=1).argmax()) == 3
    weights = torch.zeros(3, 2)
    weights[2, 1] = 1.0
    assert shared_score(scores, weights=weights).tolist() == scores[2, 1].tolist()


def test_smoothing_is_the_mean_over_neighbours_that_exist():
    score = torch.tensor([0.0, 3.0, 6.0, 0.0])
    assert smooth(score, 3).tolist() == pytest.approx([1.5, 3.0, 3.0, 3.0])
    assert torch.equal(smooth(score, 1), score)
    assert smooth(torch.rand(2, 3, 10), 5).shape == (2, 3, 10)


def test_a_sentence_has_one_score_and_special_tokens_keep_theirs():
    score = torch.tensor([9.0, 1.0, 3.0, 5.0, 7.0])
    assert by_segment(score, torch.tensor([-1, 0, 0, 1, 1])).tolist() == [9.0, 2.0, 2.0, 6.0, 6.0]
    assert by_segment(score, torch.full((5,), -1)).tolist() == score.tolist()


def test_standardising_without_spread_gives_zeros():
    assert standardised(torch.ones(4)).tolist() == [0.0] * 4
    assert float(standardised(torch.rand(50)).std(unbiased=False)) == pytest.approx(1.0, abs=1e-5)
