from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from agentflow.errors import UserError
from agentflow.evaluation.statistics import (
    Interval,
    align,
    holm,
    mcnemar_p,
    mean_interval,
    minimum_detectable_effect,
    paired_difference,
    permutation_p,
    resampled_means,
    spread,
    win_tie_loss,
)


def discordant(won: int, lost: int, same: int = 10) -> tuple[list[int], list[int]]:
    return [1] * won + [0] * lost + [1] * same, [0] * won + [1] * lost + [1] * same


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [
        (1, 7, 2 * (1 + 8) / 2**8),  # Fagerland, Lydersen and Laake 2013: 0.0703
        (150, 86, 3.716e-05),  # Agresti 1990, approval ratings
        (5, 15, 0.041389),
        (4, 4, 1.0),
        (0, 0, 1.0),
        (0, 1, 1.0),
    ],
)
def test_mcnemar_gives_the_textbook_values(won: int, lost: int, p: float) -> None:
    assert mcnemar_p(*discordant(won, lost)) == pytest.approx(p, rel=1e-3)


def test_mcnemar_refuses_outcomes_that_are_no_outcomes() -> None:
    with pytest.raises(UserError, match="0 or 1"):
        mcnemar_p([0.5, 1], [0, 1])


def test_holm_gives_the_textbook_values_in_the_order_given() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("n", [2, 5, 40, 300])
def test_the_bootstrap_agrees_with_scipys_bca(n: int) -> None:
    values = np.random.default_rng(n).exponential(size=n)
    ours = mean_interval(values, seed=1)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=10_000, rng=np.random.default_rng(2)).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.06 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.06 * width)
    assert (ours.mean, ours.n) == (pytest.approx(values.mean()), n)


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda rng: rng.exponential(size=40), 1.0),
        (lambda rng: rng.binomial(1, 0.3, size=40).astype(float), 0.3),
        (lambda rng: np.clip(rng.normal(0.5, 0.2, size=25), -9, 9), 0.5),
    ],
)
def test_intervals_cover_the_truth_about_as_often_as_they_say(draw, truth: float) -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for trial in range(500):
        found = mean_interval(draw(rng), seed=trial, resamples=1000)
        hits += found.low <= truth <= found.high
    assert 0.905 <= hits / 500 <= 0.985


def test_rare_outcomes_are_covered_even_where_none_was_seen() -> None:
    rng = np.random.default_rng(6)
    hits = 0
    for trial in range(500):
        found = mean_interval(rng.binomial(1, 0.02, size=30), seed=trial, bounds=(0, 1), resamples=500)
        hits += found.low <= 0.02 <= found.high
    assert hits / 500 >= 0.93


def test_the_seed_decides_and_chunks_do_not_matter_to_shape() -> None:
    values = np.random.default_rng(0).normal(size=900)
    assert resampled_means(values, seed=3).shape == (10_000,)
    assert np.array_equal(resampled_means(values, seed=3), resampled_means(values, seed=3))
    assert not np.array_equal(resampled_means(values, seed=3), resampled_means(values, seed=4))
    assert mean_interval(values, seed=-1) == mean_interval(values, seed=-1)


def test_equal_values_claim_no_certainty_within_bounds() -> None:
    sure = mean_interval([1.0] * 40, seed=0, bounds=(0, 1))
    assert (sure.mean, sure.high) == (1.0, 1.0)
    assert sure.low == pytest.approx(0.05 ** (1 / 40))  # the exact one-sided binomial bound
    alone = mean_interval([1.0], seed=0, bounds=(0, 1))
    assert (alone.low, alone.high, alone.n) == (pytest.approx(0.05), 1.0, 1)
    gap = paired_difference([0.5] * 10, [0.5] * 10, seed=0, bounds=(0, 1))
    assert gap.low == pytest.approx(-(1 - 0.05**0.1))
    assert gap.high == pytest.approx(1 - 0.05**0.1)


def test_one_unbounded_value_has_no_interval() -> None:
    assert mean_interval([2.5], seed=0) == Interval(2.5, None, None, 1)
    assert mean_interval([2.5, 2.5], seed=0) == Interval(2.5, 2.5, 2.5, 2)


def test_a_paired_interval_is_that_of_the_differences() -> None:
    rng = np.random.default_rng(1)
    common = rng.normal(0, 5, 50)
    first, second = common + 0.3 + rng.normal(0, 0.1, 50), common
    found = paired_difference(first, second, seed=0)
    assert found == mean_interval(first - second, seed=0)
    assert found.low > 0.2  # what the items share is gone


def test_few_differences_are_permuted_exactly_as_by_hand() -> None:
    gaps = np.array([0.4, -0.1, 0.3, 0.2, 0.0])
    ways = [abs(sum(s * g for s, g in zip(signs, gaps, strict=True))) for signs in product((-1, 1), repeat=5)]
    expected = np.mean([w >= abs(gaps.sum()) - 1e-12 for w in ways])
    assert permutation_p(gaps, np.zeros(5), seed=0) == pytest.approx(expected)


@pytest.mark.parametrize("n", [8, 40])
def test_permutation_agrees_with_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.3, 1, n), rng.normal(0, 1, n)
    theirs = stats.permutation_test(
        (first, second),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=10_000,
        rng=np.random.default_rng(1),
    )
    ours = permutation_p(first, second, seed=2)
    assert ours == pytest.approx(theirs.pvalue, abs=1e-9 if n == 8 else 0.02)
    assert ours == pytest.approx(stats.wilcoxon(first, second).pvalue, abs=0.2)


def test_permutation_without_differences_says_nothing() -> None:
    assert permutation_p([1.0, 2.0], [1.0, 2.0], seed=0) == 1.0
    assert permutation_p([1.0], [0.0], seed=0) == 1.0


def test_permutation_holds_its_level() -> None:
    rng = np.random.default_rng(9)
    pairs = [(rng.normal(size=20), rng.normal(size=20)) for _ in range(400)]
    rejected = sum(permutation_p(a, b, seed=t, resamples=500) < 0.05 for t, (a, b) in enumerate(pairs))
    assert 8 <= rejected <= 34


@pytest.mark.parametrize("n", [12, 60])
def test_the_detectable_effect_is_seen_with_80_percent_power(n: int) -> None:
    rng = np.random.default_rng(n)
    shape = rng.normal(size=n)
    effect = minimum_detectable_effect((shape - shape.mean()) / shape.std(ddof=1) * 0.25)
    assert effect is not None
    samples = rng.normal(effect, 0.25, size=(4000, n))
    power = np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05)
    assert 0.78 <= power <= 0.83


def test_a_detectable_effect_needs_spread() -> None:
    assert minimum_detectable_effect([0.3]) is None
    assert minimum_detectable_effect([0.3, 0.3, 0.3]) is None


def test_wins_ties_and_losses_follow_the_direction() -> None:
    assert win_tie_loss([1, 0, 1, 0.5], [0, 0, 1, 0.9]) == (1, 2, 1)
    assert win_tie_loss([1, 0, 1, 0.5], [0, 0, 1, 0.9], lower_wins=True, tie=0.5) == (0, 3, 1)


def test_spread_is_mean_median_and_95th_percentile() -> None:
    assert spread(range(101)) == (50.0, 50.0, 95.0)
    assert spread([3.0]) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [float("inf")], [[1.0, 2.0]]])
def test_what_is_no_list_of_finite_numbers_is_refused(bad) -> None:
    for function in (spread, minimum_detectable_effect, lambda v: mean_interval(v, seed=0)):
        with pytest.raises(UserError, match=r"finite|at least one"):
            function(bad)


def test_unlike_item_sets_are_refused_by_the_names_of_what_is_missing() -> None:
    first, second = align({"a": 1.0, "b": 2.0}, {"b": 20.0, "a": 10.0})
    assert (list(first), list(second)) == ([1.0, 2.0], [10.0, 20.0])
    with pytest.raises(UserError, match="second arm lacks items of the other: b, c"):
        align({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0})
    with pytest.raises(UserError, match=r"first arm lacks .* q4 and 3 more"):
        align({"a": 1.0}, {"a": 1.0, **{f"q{n}": 0.0 for n in range(8)}})
    with pytest.raises(UserError, match="not 2 and 1"):
        win_tie_loss([1, 2], [1])


def test_intervals_read_well() -> None:
    assert Interval(0.421, 0.309, 0.52, 9).text() == "0.42 [0.31, 0.52]"
    assert Interval(-0.0012, -0.04, 0.03, 9).text(sign=True) == "0.00 [−0.04, 0.03]"
    assert Interval(0.05, 0.01, 0.0899, 9).text(3, edges=2, sign=True) == "+0.050 [0.01, 0.09]"
    assert Interval(-2.5, None, None, 1).text() == "−2.50"
