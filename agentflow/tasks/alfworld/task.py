"""ALFWorld as a task: one item a game, which is won or not."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from agentflow.errors import DataError, UserError
from agentflow.tasks.alfworld.archive import games_folder
from agentflow.tasks.alfworld.gamefile import GameFile, TaskType
from agentflow.tasks.alfworld.games import Game, Split, iter_games
from agentflow.tasks.alfworld.pool import MAX_STEPS, EnvironmentPool, PoolSettings
from agentflow.tasks.base import Item, TaskSettings, check_limit
from agentflow.tasks.draws import Draws
from agentflow.tasks.interactive import InteractiveTask, Outcome


class AlfWorldSettings(TaskSettings):
    """Which games, in which order, and how long one may take."""

    split: Split = Field(default="valid_seen", description="Games of known rooms, of unknown rooms, or for training.")
    task_type: TaskType | None = Field(default=None, description="Only games of this type.")
    max_steps: int = Field(default=MAX_STEPS, ge=1, description="Most commands in a game.")
    shuffle: bool = Field(
        default=True,
        description="Put the games in a seeded random order; in their own, one task type comes after another.",
    )


class AlfWorld(InteractiveTask):
    """Households in text (Shridhar et al. 2021): find, clean, heat, cool, look at and put away things.

    `data` is a folder of games or an archive of one. Inputs: `task`, the task in words, and `game`, the file to
    play; group is the task type. Metrics: `success`, and `spared`, the share of the allowed commands that a won
    game did without. Only the planner is told the task, so it is what a message must carry.
    """

    name: ClassVar[str] = "alfworld"
    Settings: ClassVar[type[TaskSettings]] = AlfWorldSettings
    needs_data: ClassVar[bool] = True
    primary: ClassVar[str] = "success"
    metrics: ClassVar[tuple[str, ...]] = ("success", "spared")
    private: ClassVar[tuple[str, ...]] = ("task",)
    settings: AlfWorldSettings

    def items(self, *, data: Path | None, limit: int | None, seed: int) -> list[Item]:
        """Return the games as items; see `Task.items`. This reads files only and needs no engine."""
        check_limit(limit)
        if data is None:
            raise UserError(f"Task '{self.name}' needs a data file.", fix="Name a folder or an archive with --data.")
        chosen = self.settings
        types = (chosen.task_type,) if chosen.task_type else ()
        found = list(iter_games(games_folder(data), splits=(chosen.split,), task_types=types))
        if not found:
            raise DataError(f"No games of {chosen.task_type or chosen.split} can be played.", where=str(data))
        ordered = Draws(f"{seed}:shuffle").shuffled(found) if chosen.shuffle else found
        return [_item(game, contents) for game, contents in ordered[:limit]]

    def score_outcome(self, item: Item, outcome: Outcome) -> dict[str, float]:
        """Return success (0 or 1) and the share of steps spared (0 where the game was not won)."""
        spared = max(0.0, 1 - outcome.steps / self.settings.max_steps) if outcome.won else 0.0
        return {"success": float(outcome.won), "spared": spared}

    def environments(self, settings: PoolSettings | None = None) -> EnvironmentPool:
        """Return the processes that play this task's games; `UserError` says how to install a missing engine."""
        return EnvironmentPool(settings)


def _item(game: Game, contents: GameFile) -> Item:
    return Item(
        id=game.id,
        inputs={"task": contents.goal, "game": str(game.file.resolve())},
        answers=(("won",),),
        group=game.task_type,
        meta={"split": game.split, "walkthrough_steps": len(contents.walkthrough)},
    )
