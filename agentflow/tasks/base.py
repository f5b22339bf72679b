"""What every task is: named items with inputs and accepted answers, and a score per prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from agentflow.errors import UserError

MOST_MADE = 100_000  # items of a generated task; they are held in memory together


class TaskSettings(BaseModel):
    """Settings of a task; an unknown key is an error, and nobody changes them later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Item:
    """One item: what the workflow is given and what counts as a right answer.

    `inputs` holds plain JSON values, the workflow's inputs. `answers` has one entry per question of the item,
    each the acceptable answers of that question (at least one). `group` splits a report ("bridge",
    "comparison", "2hop"), "" if the task has none. `meta` is for scoring and diagnosis; agents never see it.
    """

    id: str
    inputs: dict[str, Any]
    answers: tuple[tuple[str, ...], ...]
    group: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


class Task(ABC):
    """A source of items and the judge of predictions.

    `private` names the input keys that only the sending side sees. The controls use it: "no message"
    withholds them, "mismatched" swaps them with another item's; everything else is the receiver's.
    `primary` is the main metric, one of `metrics`; every metric is in [0, 1], higher is better. An item of an
    `interactive` task is an episode in a world (see `agentflow.tasks.interactive`): it has no text of a right answer.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[TaskSettings]] = TaskSettings
    needs_data: ClassVar[bool]
    primary: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    private: ClassVar[tuple[str, ...]]
    interactive: ClassVar[bool] = False

    settings: TaskSettings

    def __init__(self, settings: TaskSettings | None = None) -> None:
        chosen = self.Settings() if settings is None else settings
        if not isinstance(chosen, self.Settings):
            wanted, got = self.Settings.__name__, type(chosen).__name__
            raise TypeError(f"{type(self).__name__} takes {wanted}, not {got}")
        self.settings = chosen

    @abstractmethod
    def items(self, *, data: Path | None, limit: int | None, seed: int) -> list[Item]:
        """Return the first `limit` usable items (None: all) with unique ids; same arguments, same items.

        Order is the file's order, or the order of generation, unless a task's `shuffle` setting is on.
        Raises `DataError` for a bad file, `UserError` for a missing or needless `data` or a bad `limit`.
        """

    @abstractmethod
    def score_answer(self, item: Item, question: int, prediction: str) -> dict[str, float]:
        """Score the prediction for the question with this index: every name of `metrics`, each in [0, 1]."""

    def score(self, item: Item, predictions: Sequence[str]) -> dict[str, float]:
        """Return every metric's mean over the item's questions; needs one prediction per question.

        Raises `ValueError` when the number of predictions is not the number of questions.
        """
        if isinstance(predictions, str) or len(predictions) != len(item.answers):
            got = "a bare string" if isinstance(predictions, str) else f"{len(predictions)} predictions"
            raise ValueError(f"item {item.id} has {len(item.answers)} questions, got {got}")
        rows = [self.score_answer(item, index, text) for index, text in enumerate(predictions)]
        return {metric: sum(row[metric] for row in rows) / len(rows) for metric in self.metrics}


def check_limit(limit: int | None, most: int | None = None) -> None:
    """Raise `UserError` for a limit below 1 or above `most`; None means no limit."""
    if limit is not None and limit < 1:
        raise UserError(f"The number of items must be at least 1, not {limit}.", where="limit")
    if limit is not None and most is not None and limit > most:
        fix = "Take fewer; another seed makes others."
        raise UserError(f"At most {most:,} items are made, not {limit:,}.", where="limit", fix=fix)
