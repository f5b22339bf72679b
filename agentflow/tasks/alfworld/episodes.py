"""Games played by a policy, several at once, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol

from agentflow.errors import DataError
from agentflow.tasks.alfworld.gamefile import GameFile, Names
from agentflow.tasks.alfworld.games import Game
from agentflow.tasks.alfworld.pool import MAX_STEPS, EnvironmentPool
from agentflow.tasks.alfworld.state import GameError, State


@dataclass(frozen=True)
class Turn:
    """A command and what was seen after it."""

    command: str
    observation: str


@dataclass(frozen=True)
class EpisodeResult:
    """What came of a game: won or not, commands given, seconds in all, and why it failed ("" where it did not).

    A game that failed says nothing about the policy: the environment broke, or the game's file is wrong.
    """

    game: str
    task_type: str
    won: bool
    steps: int
    seconds: float
    failure: str = ""
    turns: tuple[Turn, ...] = ()


class Policy(Protocol):
    """Says what to do next; a policy is made for each game."""

    def __call__(self, opening: State, turns: Sequence[Turn], state: State) -> str | None:
        """Return the next command, or None to give up."""


def replay(walkthrough: Sequence[str]) -> Policy:
    """Return the policy that gives stored commands in order and then gives up."""

    def policy(opening: State, turns: Sequence[Turn], state: State) -> str | None:
        return walkthrough[len(turns)] if len(turns) < len(walkthrough) else None

    return policy


@dataclass(frozen=True)
class Play:
    """A game to be played, by whom, with which names and within how many steps."""

    game: Game
    policy: Policy
    names: Names = "display"
    max_steps: int = MAX_STEPS


def walkthrough_of(game: Game, contents: GameFile) -> Play:
    """Return the replay of a game's stored walkthrough, in the names that it speaks in.

    Raises `DataError` for a game without one, as training games are.
    """
    if not contents.walkthrough:
        raise DataError("The game has no walkthrough.", where=game.id)
    steps = max(MAX_STEPS, len(contents.walkthrough))
    return Play(game, replay(contents.walkthrough), contents.walkthrough_names, steps)


def play(pool: EnvironmentPool, plan: Play) -> EpisodeResult:
    """Play one game to its end; an environment that fails is a result that says so."""
    start, turns, won, failure = time.perf_counter(), list[Turn](), False, ""
    try:
        with pool.episode(plan.game.file, names=plan.names, max_steps=plan.max_steps) as episode:
            opening = state = episode.reset()
            while not state.done:
                command = plan.policy(opening, tuple(turns), state)
                if command is None:
                    break
                state = episode.step(command)
                turns.append(Turn(command, state.observation))
            won = state.won
    except GameError as error:
        failure = str(error)
    seconds = time.perf_counter() - start
    return EpisodeResult(plan.game.id, plan.game.task_type, won, len(turns), seconds, failure, tuple(turns))


def play_all(
    pool: EnvironmentPool, plans: Sequence[Play], *, told: Callable[[EpisodeResult], None] = lambda _: None
) -> list[EpisodeResult]:
    """Play all games, as many at once as the pool has processes; return the results in the order of `plans`.

    `told` is called in this thread for each game that is over. What a policy raises stops everything and is raised
    here; so is Ctrl-C, and no process is left behind.
    """
    return list(_played(pool, plans, told))


def _played(
    pool: EnvironmentPool, plans: Sequence[Play], told: Callable[[EpisodeResult], None]
) -> Iterator[EpisodeResult]:
    executor = ThreadPoolExecutor(pool.settings.processes, thread_name_prefix="alfworld")
    try:
        futures = [executor.submit(play, pool, plan) for plan in plans]
        for future in as_completed(futures):
            told(future.result())
        yield from (future.result() for future in futures)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        pool.close()  # games under way end with a failure, and so their threads
        raise
    finally:
        executor.shutdown()
