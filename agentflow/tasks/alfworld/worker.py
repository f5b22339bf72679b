"""The inside of a worker process: plays one game after another for the process that started it.

Messages are JSON, so that nothing that a game says is ever unpickled: `{"open": file, "names": …}`, `{"reset": true}`,
`{"step": command}`; answers are `{"state": …}`, `{"opened": true}` or `{"error": reason}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agentflow.errors import UserError
from agentflow.tasks.alfworld.gamefile import Names
from agentflow.tasks.alfworld.state import Environment

Opener = Callable[[Path, Names], Environment]
"""Opens a game; a function at the top of a module, since another process must find it by name."""


def serve(connection: Connection, opener: Opener, memory_bytes: int) -> None:
    """Answer until the other end is closed; a game that wants more memory than this fails."""
    _limit_memory(memory_bytes)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.dup2(2, 1)  # an engine that prints must not spoil the results on standard output
    game: Environment | None = None
    while True:
        try:
            message = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if "open" in message:
                game = opener(Path(message["open"]), message["names"])
                answer: dict[str, Any] = {"opened": True}
            else:
                assert game is not None
                state = game.reset() if "reset" in message else game.step(message["step"])
                answer = {"state": state.to_json()}
        except Exception as error:  # noqa: BLE001 - whatever the engine raises is the game's failure, said to the parent
            answer = {"error": _reason(error)}
        try:
            connection.send_bytes(json.dumps(answer).encode())
        except OSError:
            return


def _limit_memory(most: int) -> None:
    """Bound what this process may allocate: a game file's grammar may expand for ever."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"[:500]


def _die_with_parent() -> None:
    """End the process when its parent is gone, however it went and whatever the game is doing."""
    parent = parent_process()
    if parent is not None:
        parent.join()
    sys.stderr.flush()
    os._exit(1)
