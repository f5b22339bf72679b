"""Which items are paired, and what the pairs of two arms say."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentflow.evaluation.rows import Comparison, Row
from agentflow.evaluation.statistics import (
    ALPHA,
    UNIT,
    Array,
    Interval,
    WinTieLoss,
    align,
    holm,
    is_binary,
    mcnemar_p,
    minimum_detectable_effect,
    paired_difference,
    permutation_p,
    win_tie_loss,
)

NLL_TIE = 1e-3
"""Nats per token: smaller differences come from the order of floating-point sums, not from a channel."""


@dataclass(frozen=True)
class Difference:
    """One figure, `arm − other`, over the items that all arms finished.

    Attributes:
        change: mean difference with its 95 % interval.
        p: two-sided; `test` says of which test.
        p_holm: adjusted within its family (see `adjusted`); None before.
        win, tie, loss: pairs that the arm wins, ties, loses.
        detectable: the smallest true difference that these pairs would show with 80 % power; None if untold.
    """

    change: Interval
    p: float
    test: str
    win: int
    tie: int
    loss: int
    detectable: float | None
    p_holm: float | None = None

    @property
    def clear(self) -> bool:
        """Whether interval and adjusted test both tell the two arms apart."""
        low, high = self.change.low, self.change.high
        p = self.p if self.p_holm is None else self.p_holm
        return low is not None and high is not None and (low > 0 or high < 0) and p < ALPHA


@dataclass(frozen=True)
class Paired:
    """Two arms on the same items: primary metric (higher is better) and NLL (lower is better).

    None where no item has the figure in both.
    """

    arm: str
    other: str
    score: Difference | None
    nll: Difference | None


class Pairs:
    """Pairs of a comparison's arms over its common items."""

    def __init__(self, comparison: Comparison, common: Collection[str]) -> None:
        self._seed = comparison.seed
        finished = [r for r in comparison.rows if not r.error and r.item in set(common)]
        self._scores = _by_arm(finished, {(r.arm, r.item): r.scores[comparison.primary] for r in finished})
        self._nll = _by_arm(finished, {(r.arm, r.item): r.nll for r in finished if finite(r.nll)})

    def of(self, arm: str, other: str) -> Paired:
        """`arm − other`."""
        return Paired(arm, other, self._score(arm, other), self._nats(arm, other))

    def _score(self, arm: str, other: str) -> Difference | None:
        both = _both(self._scores.get(arm, {}), self._scores.get(other, {}))
        if both is None:
            return None
        first, second = both
        if is_binary(first) and is_binary(second):
            p, test = mcnemar_p(first, second), "exact McNemar"
        else:
            p, test = permutation_p(first, second, seed=self._seed), "paired permutation"
        change = paired_difference(first, second, seed=self._seed, bounds=UNIT)
        return _difference(first, second, change, p, test, win_tie_loss(first, second))

    def _nats(self, arm: str, other: str) -> Difference | None:
        both = _both(self._nll.get(arm, {}), self._nll.get(other, {}))
        if both is None:
            return None
        first, second = both
        near = np.where(np.abs(first - second) <= NLL_TIE, second, first)
        p = permutation_p(near, second, seed=self._seed)
        counts = win_tie_loss(near, second, lower_wins=True)
        change = paired_difference(first, second, seed=self._seed)
        return _difference(first, second, change, p, "paired permutation", counts)


def _difference(first: Array, second: Array, change: Interval, p: float, test: str, counts: WinTieLoss) -> Difference:
    return Difference(change, p, test, *counts, detectable=minimum_detectable_effect(first - second))


def _by_arm(rows: Sequence[Row], values: Mapping[tuple[str, str], float | None]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        value = values.get((row.arm, row.item))
        if value is not None:
            found.setdefault(row.arm, {})[row.item] = value
    return found


def _both(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[Array, Array] | None:
    shared = [item for item in first if item in second]
    if not shared:
        return None
    return align({i: first[i] for i in shared}, {i: second[i] for i in shared})


def adjusted(family: Sequence[Paired]) -> tuple[Paired, ...]:
    """The pairs with Holm-adjusted p-values; scores are one family of tests, NLLs another."""
    scores = _adjusted([p.score for p in family])
    nats = _adjusted([p.nll for p in family])
    return tuple(replace(p, score=s, nll=n) for p, s, n in zip(family, scores, nats, strict=True))


def _adjusted(differences: Sequence[Difference | None]) -> list[Difference | None]:
    values = iter(holm([d.p for d in differences if d is not None]))
    return [None if d is None else replace(d, p_holm=next(values)) for d in differences]


def finite(value: float | None) -> bool:
    """Whether there is a value, and it is a number."""
    return value is not None and math.isfinite(value)


def common_items(comparison: Comparison) -> tuple[str, ...]:
    """The items that every arm finished. Arms that finished nothing have no say: they can't be paired at all."""
    finished: dict[str, set[str]] = {}
    for row in comparison.rows:
        if not row.error:
            finished.setdefault(row.arm, set()).add(row.item)
    every = list(finished.values())
    return tuple(i for i in comparison.items if every and all(i in items for items in every))
