"""Tool `alfworld`: what an agent sees in a game after what it has done so far."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

from agentflow.tasks.alfworld.live import LiveGames
from agentflow.tasks.alfworld.pool import MAX_STEPS, EnvironmentPool, PoolSettings
from agentflow.tasks.alfworld.prompt import split_opening

PROCESSES = 8
"""Games that are kept where they are; as many items as one batch holds."""


class AlfWorldTool:
    """What is seen in a game of ALFWorld after some answers of an agent, what can be done there, and whether it is won.

    It remembers nothing that the arguments don't say: the same game and actions give the same result, whoever asks.
    Behind it, games are kept in worker processes where they are, so that one more action costs one step.
    """

    def __init__(self, pool: EnvironmentPool | None = None) -> None:
        """`pool` replaces the processes that are started when a game is first asked for (tests, other text games)."""
        self._games = LiveGames(pool) if pool is not None else None
        self._lock = threading.Lock()

    def __call__(
        self, game: str, actions: list[str], max_steps: int = MAX_STEPS, names: Literal["display", "ids"] = "display"
    ) -> dict[str, Any]:
        """Play.

        Args:
            game: the game's file.
            actions: answers of the agent, oldest first; each is read as `match_action` reads it, and one that names
                no admissible command is said to the game as it is.
            max_steps: commands after which the game is over.
            names: how things are called.

        Returns:
            `text` (what is seen; at the beginning the room without the task), `admissible` (commands), `command` (the
            last that was done), `steps`, `done` and `won`.
        """
        found = self._live().reached(Path(game), actions, names=names, max_steps=max_steps)
        state = found.state
        return {
            "text": state.observation if found.steps else split_opening(state.observation).room,
            "admissible": list(state.admissible),
            "command": found.command,
            "steps": found.steps,
            "done": state.done,
            "won": state.won,
        }

    def close(self) -> None:
        """End all games and their processes."""
        with self._lock:
            if self._games is not None:
                self._games.close()

    def _live(self) -> LiveGames:
        with self._lock:
            if self._games is None:
                self._games = LiveGames(EnvironmentPool(PoolSettings(processes=PROCESSES)))
            return self._games
