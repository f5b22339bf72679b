"""The outside of a worker process: asks it, waits no longer than allowed, and ends it."""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
from pathlib import Path
from typing import Any

from agentflow.tasks.alfworld.gamefile import Names
from agentflow.tasks.alfworld.state import GameError, State
from agentflow.tasks.alfworld.worker import Opener, serve

# A fresh interpreter: forking a process that holds a model and threads is neither cheap nor safe.
_SPAWN = multiprocessing.get_context("spawn")
# Starting and reaping touch tables that `multiprocessing` keeps for the whole process without a lock.
_TABLES = threading.Lock()


class WorkerProcess:
    """One process that plays games, one at a time. `games` counts those opened in it."""

    def __init__(self, opener: Opener, memory_bytes: int) -> None:
        self._connection, theirs = _SPAWN.Pipe()
        arguments = (theirs, opener, memory_bytes)
        self._process = _SPAWN.Process(target=serve, args=arguments, daemon=True, name="agentflow-alfworld")
        with _TABLES:
            self._process.start()
        theirs.close()
        self.games = 0
        self.usable = True

    @property
    def pid(self) -> int | None:
        """The process's number."""
        return self._process.pid

    def open(self, file: Path, names: Names, seconds: float) -> None:
        """Open a game; see `_ask` for what goes wrong."""
        self.games += 1
        self._ask({"open": str(file), "names": names}, seconds, "opening the game")

    def reset(self, seconds: float) -> State:
        """Start the open game from the beginning."""
        return State.from_json(self._ask({"reset": True}, seconds, "starting the game")["state"])

    def step(self, command: str, seconds: float) -> State:
        """Send a command to the open game."""
        return State.from_json(self._ask({"step": command}, seconds, f"the command {command[:80]!r}")["state"])

    def end(self) -> None:
        """Kill the process and wait until it is gone; harmless when it is already."""
        self.usable = False
        with _TABLES:
            self._process.kill()
            self._process.join()

    def _ask(self, message: dict[str, Any], seconds: float, doing: str) -> dict[str, Any]:
        """Return the answer.

        Raises:
            GameError: the engine says why, or the process died or was silent for `seconds`. The process is
                not used again: its engine may be left in any state.
        """
        usable, self.usable = self.usable, False  # also if Ctrl-C comes between question and answer
        if not usable:
            raise GameError(f"The game's process was ended: {doing}.")
        try:
            self._connection.send_bytes(json.dumps(message).encode())
            answered = self._connection.poll(seconds)
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes()) if answered else {}
        except (EOFError, OSError):
            raise GameError(f"The game's process {self._obituary()}: {doing}.") from None
        if not answered:
            self.end()
            raise GameError(f"No answer within {seconds:g} seconds: {doing}.")
        if "error" in answer:
            raise GameError(str(answer["error"]))
        self.usable = True
        return answer

    def _obituary(self) -> str:
        with _TABLES:
            self._process.join(timeout=5)
            code = self._process.exitcode
        self.end()
        if code is None:
            return "closed its connection"
        if code < 0:
            return f"was killed by {_signal_name(-code)}"
        return f"ended with code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
