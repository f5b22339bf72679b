"""Reading from a socket with an end in sight: a sender may be slow, but not for ever, and not endless."""

from __future__ import annotations

import io
import socket
import time
from contextlib import suppress
from typing import Any


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A request that gets another answer than it hoped for: a status, a line for people, more headers."""

    def __init__(self, status: int, words: str, **headers: str) -> None:
        self.status, self.words, self.headers = status, words, headers
        super().__init__(words)


class Wire(io.RawIOBase):
    """The reading side of a connection.

    Args:
        patience: seconds that it waits for a byte.
        head: bytes and seconds that a request's head may take; the seconds are `patience`.
    """

    def __init__(self, connection: socket.socket, patience: float, head: int) -> None:
        self._connection, self.patience, self._left = connection, patience, head
        self._end = time.monotonic() + patience

    def readable(self) -> bool:
        """It is."""
        return True

    def expect(self, seconds: float) -> None:
        """The head is read: from now on there may be as many bytes as come in so many seconds."""
        self._end, self._left = time.monotonic() + seconds, -1

    def readinto(self, buffer: Any, /) -> int:
        """Read what is there, waiting for some.

        Raises:
            TimeoutError: the time is over.
            ConnectionError: the sender has gone, with a part of the body unsaid.
            Refused: the head is too long.
        """
        if self._left == 0:
            raise Refused(431, "The head of this request is too long.")
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        self._connection.settimeout(min(rest, self.patience))
        view = memoryview(buffer)
        count = self._connection.recv_into(view[: self._left] if self._left > 0 else view)
        if self._left > 0:
            self._left -= count
        elif not count:
            raise ConnectionResetError("the body is not whole")
        return count


def let_go(connection: socket.socket, *, seconds: float = 1.0, most: int = 4 << 20) -> None:
    """End a connection whose sender may still be talking, so that it hears the answer: closed at once, it would not.

    What it says is thrown away, for so many seconds and bytes.
    """
    end = time.monotonic() + seconds
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while most > 0 and (rest := end - time.monotonic()) > 0:
            connection.settimeout(rest)
            count = len(connection.recv(1 << 16))
            if not count:
                return
            most -= count
