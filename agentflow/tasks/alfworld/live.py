"""Games that are asked for by what was done in them, and kept where they are in case somebody goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agentflow.tasks.alfworld.actions import match_action, spoken
from agentflow.tasks.alfworld.gamefile import Names
from agentflow.tasks.alfworld.pool import EnvironmentPool, Episode
from agentflow.tasks.alfworld.state import State


@dataclass(frozen=True)
class Reached:
    """Where a game is after some answers: what is seen there, the last command that was done, and how many were."""

    state: State
    command: str
    steps: int


@dataclass(eq=False)
class _Live:
    """A game in a process, and the answers that led to where it is."""

    file: Path
    names: Names
    max_steps: int
    episode: Episode
    lease: ExitStack
    answers: list[str] = field(default_factory=list)
    command: str = ""

    def goes_on(self, answers: Sequence[str]) -> bool:
        """Whether these answers lead through where it is."""
        return self.answers == list(answers[: len(self.answers)])

    def go(self, answers: Sequence[str]) -> Reached:
        """Do what is missing; where the game is over, the rest is left out."""
        if self.episode.state is None or not self.goes_on(answers):
            self.answers.clear()
            self.command = ""
            self.episode.reset()
        state = self.episode.state
        assert state is not None
        for answer in answers[len(self.answers) :]:
            if state.done:
                break
            match = match_action(answer, state.admissible)
            self.command = match.command if match else spoken(answer) or "look"
            state = self.episode.step(self.command)
            self.answers.append(answer)
        return Reached(state, self.command, self.episode.steps)


class LiveGames:
    """Plays games on demand: `reached(file, answers)` is the same whatever was asked before, and fast where that goes
    on from there.

    As many games are kept as the pool has processes. Threads may ask together; the game that was not asked for longest
    is given up when there is no room.
    """

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool
        self._idle: list[_Live] = []  # the one that was asked for last at the end
        self._open = 0
        self._changed = threading.Condition()

    def reached(self, file: Path, answers: Sequence[str], *, names: Names = "display", max_steps: int = 50) -> Reached:
        """Where a game is after these answers of an agent.

        Raises:
            GameError: it can't be played; see `EnvironmentPool`.
        """
        live = self._take(file, answers, names, max_steps)
        try:
            found = live.go(answers)
        except BaseException:
            self._give_up(live)
            raise
        with self._changed:
            self._idle.append(live)
            self._changed.notify()
        return found

    def close(self) -> None:
        """End all games."""
        with self._changed:
            idle, self._idle = self._idle, []
        for live in idle:
            self._give_up(live)
        self._pool.close()

    def _take(self, file: Path, answers: Sequence[str], names: Names, max_steps: int) -> _Live:
        """A game that goes on to these answers, or begins anew."""
        spare = None
        with self._changed:
            while True:
                same = [g for g in self._idle if (g.file, g.names, g.max_steps) == (file, names, max_steps)]
                ahead = [game for game in same if game.goes_on(answers)]
                if same:  # one that is on the way, else one that can be started again
                    chosen = max(ahead, key=lambda game: len(game.answers)) if ahead else same[0]
                    self._idle.remove(chosen)
                    return chosen
                if self._open < self._pool.settings.processes:
                    break
                if self._idle:
                    spare = self._idle.pop(0)
                    break
                self._changed.wait()
            self._open += 1
        if spare is not None:
            self._give_up(spare)
        lease = ExitStack()
        try:
            episode = lease.enter_context(self._pool.episode(file, names=names, max_steps=max_steps))
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise
        return _Live(file, names, max_steps, episode, lease)

    def _give_up(self, live: _Live) -> None:
        live.lease.close()
        with self._changed:
            self._open -= 1
            self._changed.notify()
