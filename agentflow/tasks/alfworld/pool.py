"""Several games at once, each in a worker process of its own, and workers that are replaced before they grow large."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from agentflow.tasks.alfworld.engine import open_game, require_engine
from agentflow.tasks.alfworld.gamefile import Names
from agentflow.tasks.alfworld.process import WorkerProcess
from agentflow.tasks.alfworld.state import GameError, State
from agentflow.tasks.alfworld.worker import Opener

MAX_STEPS = 50  # as ALFWorld evaluates


@dataclass(frozen=True)
class PoolSettings:
    """How many processes, for how many games each, how long they may take (seconds), and how much memory.

    A process that plays ALFWorld games grows to some 600 MB after 110 of them.
    """

    processes: int = 2
    games_per_process: int = 25
    open_seconds: float = 180.0
    step_seconds: float = 60.0
    memory_bytes: int = 4 * 1024**3

    def __post_init__(self) -> None:
        if min(self.processes, self.games_per_process) < 1 or min(self.open_seconds, self.step_seconds) <= 0:
            raise ValueError("a pool needs at least one process, one game a process and some time")


class EnvironmentPool:
    """Worker processes that play games; a context manager that leaves none of them behind.

    Threads may use one pool together: `episode` waits until one of the processes is free. Processes start when they
    are first needed.
    """

    def __init__(self, settings: PoolSettings | None = None, *, opener: Opener = open_game) -> None:
        """Raise `UserError` where the engine is missing; `opener` replaces it (tests, other text games)."""
        if opener is open_game:
            require_engine()
        self.settings = settings or PoolSettings()
        self._opener = opener
        self._free = threading.Semaphore(self.settings.processes)
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def episode(self, file: Path, *, names: Names = "display", max_steps: int = MAX_STEPS) -> Iterator[Episode]:
        """Lend a process for one game, from opening the file to the end of the block.

        Raises `GameError` if the game can't be opened or the pool is closed.
        """
        with self._free:
            worker = self._take()
            try:
                worker.open(file, names, self.settings.open_seconds)
                yield Episode(worker, self.settings, max_steps)
            finally:
                self._give_back(worker)

    def close(self) -> None:
        """End all processes, those in the middle of a game too; whoever plays gets an `GameError`."""
        with self._lock:
            self._closed = True
            workers = [*self._idle, *self._busy]
            self._idle.clear()
        for worker in workers:
            worker.end()

    def _take(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise GameError("The environments are closed.")
            worker = self._idle.pop() if self._idle else self._new()
            self._busy.add(worker)
            return worker

    def _new(self) -> WorkerProcess:
        return WorkerProcess(self._opener, self.settings.memory_bytes)

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._busy.discard(worker)
            keep = worker.usable and worker.games < self.settings.games_per_process and not self._closed
            if keep:
                self._idle.append(worker)
        if not keep:
            worker.end()


class Episode:
    """One game being played: `reset` once, then `step` until `done`. `steps` counts commands, at most `max_steps`."""

    def __init__(self, worker: WorkerProcess, settings: PoolSettings, max_steps: int) -> None:
        if max_steps < 1:
            raise ValueError(f"a game needs at least one step, not {max_steps}")
        self._worker, self._settings = worker, settings
        self.max_steps, self.steps = max_steps, 0
        self.state: State | None = None

    def reset(self) -> State:
        """Start (again) from the beginning: the room, the task, and the admissible commands."""
        self.steps = 0
        self.state = self._worker.reset(self._settings.open_seconds)
        return self.state

    def step(self, command: str) -> State:
        """Do what the command says; `done` is also set by the last allowed step.

        Raises `ValueError` before `reset` and after the end, `GameError` when the environment fails.
        """
        if self.state is None or self.state.done:
            raise ValueError("this game has not begun" if self.state is None else "this game is over")
        found = self._worker.step(command, self._settings.step_seconds)
        self.steps += 1
        self.state = replace(found, done=found.done or self.steps >= self.max_steps)
        return self.state
