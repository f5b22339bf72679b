"""Which tickets were used, so that a request that is sent again is neither lost nor stored twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from agentflow.exchange.ticket import WINDOW, Ticket

_STALE = 10_000  # lines of old tickets in the file before it is written anew


class Received:
    """Nonces of payloads that are stored, for as long as their tickets could be used; kept in a file.

    A line is written after its payload is stored: a process that is killed in between finds the nonce in the
    payload's name.

    Args:
        path: of the file.
        waiting: nonces of payloads that lie in the folder.
    """

    def __init__(self, path: Path, waiting: Iterable[str] = ()) -> None:
        self._path, self._lock = path, threading.Lock()
        self._arriving: set[str] = set()
        self._times = {**_read(path), **dict.fromkeys(waiting, int(time.time()))}
        self._rewrite()

    def begin(self, nonce: str) -> str:
        """Claim a nonce: "" where it is new, else "arriving" or "stored"."""
        with self._lock:
            if nonce in self._times:
                return "stored"
            if nonce in self._arriving:
                return "arriving"
            self._arriving.add(nonce)
            return ""

    def stored(self, ticket: Ticket) -> None:
        """Remember a ticket whose payload is stored."""
        with self._lock:
            self._times[ticket.nonce] = ticket.time
            self._file.write(f"{ticket.time} {ticket.nonce}\n")
            self._file.flush()
            self._lines += 1
            if self._lines > 2 * len(self._times) + _STALE or len(self._times) > 2 * self._kept + _STALE:
                self._file.close()
                self._rewrite()

    def end(self, nonce: str) -> None:
        """Let go of a claim; one whose payload was not stored can be used again."""
        with self._lock:
            self._arriving.discard(nonce)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _rewrite(self) -> None:
        """Forget what can't be used any more, here and in the file."""
        oldest = time.time() - WINDOW
        self._times = {nonce: at for nonce, at in self._times.items() if at >= oldest}
        part = self._path.with_suffix(".part")
        part.write_text("".join(f"{at} {nonce}\n" for nonce, at in self._times.items()), encoding="ascii")
        part.replace(self._path)
        self._file = self._path.open("a", encoding="ascii")
        self._lines = self._kept = len(self._times)


def _read(path: Path) -> dict[str, int]:
    """Nonces and times; a line that a crash has cut is left out."""
    found = {}
    for line in path.read_text(encoding="ascii", errors="replace").splitlines() if path.exists() else ():
        at, _, nonce = line.partition(" ")
        if at.isdigit() and len(nonce) == 32:
            found[nonce] = int(at)
    return found
