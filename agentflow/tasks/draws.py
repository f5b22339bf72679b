"""Seeded choices that come out the same on every Python version.

Only `random.Random.random()` with a string seed is promised to repeat across versions; `shuffle` and `sample`
are not. So the tasks draw everything from that one function.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of choices for a string seed such as "0:17" (seed and item)."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 - reproducible data, not secrets

    def below(self, n: int) -> int:
        """Return a whole number in [0, n)."""
        return int(self._random.random() * n)

    def between(self, low: int, high: int) -> int:
        """Return a whole number in [low, high], both ends included."""
        return low + self.below(high - low + 1)

    def coin(self) -> bool:
        """Return True or False, equally likely."""
        return self.below(2) == 1

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options; there must be at least one."""
        return options[self.below(len(options))]

    def sample(self, options: Sequence[T], k: int) -> list[T]:
        """Return k different places' options in random order (the first k steps of a Fisher-Yates shuffle).

        Raises `ValueError` when there are fewer than k.
        """
        if k > len(options):
            raise ValueError(f"can't draw {k} of {len(options)}")
        pool = list(options)
        for at in range(k):
            other = at + self.below(len(pool) - at)
            pool[at], pool[other] = pool[other], pool[at]
        return pool[:k]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """Return all options in random order."""
        return self.sample(options, len(options))
