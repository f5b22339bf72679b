"""Paired statistics over items: intervals, tests, and what a run could have seen.

Every function is pure: arrays and a seed in, figures out. The unit is the item, since the items are what was
drawn from a population; the same item over two arms makes a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentflow.errors import UserError

Array = NDArray[np.float64]
Bounds = tuple[float, float]

RESAMPLES = 10_000
ALPHA = 0.05
POWER = 0.8
UNIT: Bounds = (0.0, 1.0)
"""The range of a score."""
EXACT = 1e-9
"""Differences up to this size are ties."""

_CHUNK = 2_000_000
_SHOWN_IDS = 5


@dataclass(frozen=True)
class Interval:
    """A mean over `n` items with its 95 % confidence interval; without bounds where the data allow none."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def text(self, digits: int = 2, *, edges: int | None = None, sign: bool = False) -> str:
        """For people: "0.42 [0.31, 0.52]"; `edges` are the digits of the bounds, as those of the mean if not given."""
        fine = digits if edges is None else edges
        form = f"{'+' if sign else ''}.{digits}f"
        if self.low is None or self.high is None:
            return minus(format(self.mean, form))
        return minus(f"{self.mean:{form}} [{self.low:.{fine}f}, {self.high:.{fine}f}]")


class WinTieLoss(NamedTuple):
    """Counts of the pairs that the first arm wins, ties and loses."""

    win: int
    tie: int
    loss: int


class Spread(NamedTuple):
    """Mean, median and 95th percentile of a cost."""

    mean: float
    p50: float
    p95: float


def minus(text: str) -> str:
    """Set a true minus sign, and no sign before a zero."""
    parts = []
    for word in text.split(" "):
        bare = word.strip("[],+-")
        zero = bool(bare) and not bare.strip("0.")
        parts.append(word.replace("-", "").replace("+", "") if zero else word.replace("-", "−"))
    return " ".join(parts)


def vector(values: ArrayLike) -> Array:
    """The values as a flat array.

    Raises:
        UserError: there are none, they have more than one axis, or one of them is no finite number.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise UserError(f"Statistics need a list of at least one value, not an array of shape {array.shape}.")
    wrong = np.flatnonzero(~np.isfinite(array))
    if wrong.size:
        raise UserError(f"Statistics need finite numbers: value {wrong[0]} of {array.size} is {array[wrong[0]]}.")
    return array


def align(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[Array, Array]:
    """The values of two arms as arrays, paired by item id, in the first one's order.

    Raises:
        UserError: an item is missing in one of the arms; the message names it.
    """
    for these, those, which in ((first, second, "second"), (second, first, "first")):
        missing = [item for item in these if item not in those]
        if missing:
            more = "" if len(missing) <= _SHOWN_IDS else f" and {len(missing) - _SHOWN_IDS} more"
            raise UserError(
                f"The {which} arm lacks items of the other: {', '.join(missing[:_SHOWN_IDS])}{more}.",
                fix="Pair only the items that both arms finished.",
            )
    return vector(list(first.values())), vector([second[item] for item in first])


def resampled_means(values: ArrayLike, *, seed: int, resamples: int = RESAMPLES) -> Array:
    """Means of `resamples` draws of all items with replacement, shape (resamples,)."""
    data = vector(values)
    rng = np.random.default_rng(seed % 2**63)
    step = max(1, _CHUNK // data.size)
    sizes = [min(step, resamples - start) for start in range(0, resamples, step)]
    means = [data[rng.integers(0, data.size, size=(size, data.size))].mean(axis=1) for size in sizes]
    return np.concatenate(means)


def mean_interval(
    values: ArrayLike, *, seed: int, bounds: Bounds | None = None, resamples: int = RESAMPLES
) -> Interval:
    """Mean with a 95 % BCa bootstrap interval over the items (Efron 1987; Efron and Tibshirani 1993, section 14.3).

    Where all `n` values are equal (one item included) a bootstrap would claim certainty. If the values are known
    to lie in `bounds`, the exact bound for unseen values stands in: with 95 % confidence at most
    u = 1 − 0.05^(1/n) of the population differs from the value seen ("rule of three": u ≈ 3/n), and lies at the
    ends of the range at worst. Without bounds, one value has no interval and equal values have an empty one.
    """
    data = vector(values)
    n, mean = data.size, float(data.mean())
    if np.ptp(data) <= EXACT:
        if bounds is not None:
            unseen = 1.0 - ALPHA ** (1.0 / n)
            return Interval(mean, mean - unseen * (mean - bounds[0]), mean + unseen * (bounds[1] - mean), n)
        return Interval(mean, None, None, n) if n == 1 else Interval(mean, mean, mean, n)
    low, high = _bca(data, resampled_means(data, seed=seed, resamples=resamples))
    return Interval(mean, low, high, n)


def _bca(data: Array, means: Array) -> tuple[float, float]:
    from scipy.special import ndtr, ndtri

    away = data - data.mean()
    below = float(np.mean(means < data.mean() - EXACT) + np.mean(np.abs(means - data.mean()) <= EXACT) / 2)
    bias = float(ndtri(min(max(below, 1 / means.size), 1 - 1 / means.size)))
    skew = float(np.sum(away**3) / (6.0 * np.sum(away**2) ** 1.5))
    ends = bias + ndtri(np.array([ALPHA / 2, 1 - ALPHA / 2]))
    low, high = np.quantile(means, ndtr(bias + ends / (1 - skew * ends)))
    return float(low), float(high)


def paired_difference(
    first: ArrayLike, second: ArrayLike, *, seed: int, bounds: Bounds | None = None, resamples: int = RESAMPLES
) -> Interval:
    """Mean of `first − second` over the pairs with a 95 % bootstrap interval; `bounds` are those of one value."""
    reach = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return mean_interval(_differences(first, second), seed=seed, bounds=reach, resamples=resamples)


def _differences(first: ArrayLike, second: ArrayLike) -> Array:
    one, two = vector(first), vector(second)
    if one.size != two.size:
        raise UserError(f"Pairs need as many values on both sides, not {one.size} and {two.size}.")
    return one - two


def mcnemar_p(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided exact McNemar test of paired 0/1 outcomes: a binomial test of the discordant pairs; 1 without any.

    Raises:
        UserError: an outcome is neither 0 nor 1.
    """
    from scipy.stats import binomtest

    if not (is_binary(first) and is_binary(second)):
        raise UserError("McNemar's test needs outcomes of 0 or 1.", fix="Use the permutation test.")
    gaps = _differences(first, second)
    won, lost = int(np.sum(gaps > 0)), int(np.sum(gaps < 0))
    return float(binomtest(won, won + lost, 0.5).pvalue) if won + lost else 1.0


def is_binary(values: ArrayLike) -> bool:
    """Whether every value is 0 or 1."""
    return bool(np.isin(vector(values), (0.0, 1.0)).all())


def permutation_p(first: ArrayLike, second: ArrayLike, *, seed: int, resamples: int = RESAMPLES) -> float:
    """Two-sided paired permutation test of the mean difference (Fisher 1935; Phipson and Smyth 2010).

    Signs of the differences are flipped in all 2^m ways where that is no more than `resamples` (m: differences that
    are not zero), else at random, the data themselves counted among the draws.
    """
    gaps = _differences(first, second)
    gaps = gaps[np.abs(gaps) > EXACT]  # a zero stays a zero whichever way it is flipped
    seen = abs(float(gaps.sum())) - EXACT * max(1, gaps.size)
    if 2**gaps.size <= resamples:
        ways = np.arange(2**gaps.size)[:, None] >> np.arange(gaps.size) & 1
        return float(np.mean(np.abs((1 - 2 * ways) @ gaps) >= seen)) if gaps.size else 1.0
    rng = np.random.default_rng(seed % 2**63)
    step, extreme = max(1, _CHUNK // gaps.size), 0
    for start in range(0, resamples, step):
        flips = rng.integers(0, 2, size=(min(step, resamples - start), gaps.size), dtype=np.int8)
        extreme += int(np.sum(np.abs(gaps.sum() - 2 * (flips @ gaps)) >= seen))
    return (extreme + 1) / (resamples + 1)


def win_tie_loss(first: ArrayLike, second: ArrayLike, *, lower_wins: bool = False, tie: float = EXACT) -> WinTieLoss:
    """Count the pairs that `first` wins, ties and loses; differences up to `tie` are ties."""
    gaps = _differences(first, second) * (-1 if lower_wins else 1)
    win, loss = int(np.sum(gaps > tie)), int(np.sum(gaps < -tie))
    return WinTieLoss(win, gaps.size - win - loss, loss)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of one family for their number (Holm 1979, step-down), in the order given."""
    if not p_values:
        return []
    values = vector(p_values)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1)))
    return [float(p) for p in adjusted]


def minimum_detectable_effect(differences: ArrayLike) -> float | None:
    """The smallest true mean difference that a paired design of this size sees with 80 % power.

    (t(0.975, n−1) + t(0.8, n−1)) · sd / √n, two-sided α = 0.05, sd of the paired differences (Cohen 1988,
    section 2.3, with t for the normal quantiles). None where the data can't tell: one pair, or all differences equal.
    """
    from scipy.stats import t

    gaps = vector(differences)
    if gaps.size == 1 or np.ptp(gaps) <= EXACT:
        return None
    quantiles = t.ppf(1 - ALPHA / 2, gaps.size - 1) + t.ppf(POWER, gaps.size - 1)
    return float(quantiles * gaps.std(ddof=1) / np.sqrt(gaps.size))


def spread(values: ArrayLike) -> Spread:
    """Mean, p50 and p95 (linear between order statistics)."""
    data = vector(values)
    p50, p95 = np.quantile(data, (0.5, 0.95))
    return Spread(float(data.mean()), float(p50), float(p95))
