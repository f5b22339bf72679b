"""Episodes in a table: by task type, how many games, how many won, in how many steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentflow.tasks.alfworld.episodes import EpisodeResult

ALL = "all"


@dataclass(frozen=True)
class Tally:
    """One task type's figures. `failed` games broke and count as not won; means are over what they say, or None."""

    task_type: str
    games: int
    won: int
    failed: int
    steps: float | None
    steps_when_won: float | None
    seconds: float

    @property
    def success(self) -> float:
        """Share of the games that were won."""
        return self.won / self.games if self.games else 0.0


def tallies(results: Sequence[EpisodeResult]) -> list[Tally]:
    """Return the figures of every task type in alphabetical order, and of all together (`ALL`) last."""
    kinds = sorted({result.task_type for result in results})
    rows = [_tally(kind, [result for result in results if result.task_type == kind]) for kind in kinds]
    return [*rows, _tally(ALL, results)]


def _tally(kind: str, results: Sequence[EpisodeResult]) -> Tally:
    return Tally(
        task_type=kind,
        games=len(results),
        won=sum(result.won for result in results),
        failed=sum(bool(result.failure) for result in results),
        steps=_mean(result.steps for result in results if not result.failure),
        steps_when_won=_mean(result.steps for result in results if result.won),
        seconds=sum(result.seconds for result in results),
    )


def _mean(values: Iterable[int]) -> float | None:
    found = list(values)
    return fmean(found) if found else None
