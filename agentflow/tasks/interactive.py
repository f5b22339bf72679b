"""Tasks whose items are episodes: a world is acted in, and what counts is how it ended, not a text.

The prediction of such an item is its outcome as JSON, so that whatever stores, pairs and scores answers handles
episodes as well.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from agentflow.tasks.base import Item, Task


@dataclass(frozen=True)
class Outcome:
    """How an episode ended: won or not, and after how many steps."""

    won: bool
    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.won, bool) or isinstance(self.steps, bool) or not isinstance(self.steps, int):
            raise ValueError(f"an outcome is won (true or false) and steps (a whole number), not {self}")
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0, not {self.steps}")

    def to_text(self) -> str:
        """Return the prediction that stands for this outcome."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, prediction: str) -> Outcome:
        """Return the outcome that a prediction stands for; `ValueError` if it is none."""
        try:
            values: Any = json.loads(prediction)
            return cls(won=values["won"], steps=values["steps"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not an episode's outcome: {prediction[:80]!r}") from error


class InteractiveTask(Task):
    """A task with one episode per item; `item.answers` is one question that is answered by winning."""

    interactive: ClassVar[bool] = True

    @abstractmethod
    def score_outcome(self, item: Item, outcome: Outcome) -> dict[str, float]:
        """Score how an item's episode ended: every name of `metrics`, each in [0, 1]."""

    def score_answer(self, item: Item, question: int, prediction: str) -> dict[str, float]:
        """Score an outcome in the form of `Outcome.to_text`; `ValueError` if it has another."""
        return self.score_outcome(item, Outcome.from_text(prediction))
