"""A folder that payloads arrive in: whole and verified or not at all, and read in the order of their arrival."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from agentflow.errors import PayloadError
from agentflow.kv.disk import PART, whole_file, write_blocks
from agentflow.kv.payload import Payload
from agentflow.kv.wire import read_payload, seal_payload

SUFFIX = ".safetensors"
CAPACITY = 16 << 30
POLL = 0.1
"""Seconds after which a reader looks for what other programs have put there."""
_BLOCK = 1 << 20

log = logging.getLogger(__name__)


class InboxFullError(PayloadError):
    """There is no room in an inbox until something is taken out."""


class Source(Protocol):
    """What bytes come from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of the buffer, and say how much; nothing at the end."""


class Inbox:
    """A folder of payloads on their way to one reader. Safe for threads, and for several programs that put.

    Args:
        folder: made when missing; a local one.
        key: signs what is put, and is demanded of what arrives and what is read.
        capacity: bytes that may lie there.
    """

    def __init__(self, folder: Path, *, key: bytes | None = None, capacity: int = CAPACITY) -> None:
        self.folder, self.key, self.capacity = folder, key, capacity
        self._lock = threading.Lock()
        self._coming = 0
        self._changed = threading.Event()
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PayloadError(f"There can be no inbox here: {error.strerror}.", where=str(folder)) from None

    def put(self, payload: Payload) -> str:
        """Put a payload there and return its digest.

        Raises:
            PayloadError: it can't travel, or there is no room.
        """
        digest, blocks = seal_payload(payload, key=self.key)
        with self._room(sum(map(len, blocks))), whole_file(self._path(secrets.token_hex(16))) as handle:
            write_blocks(handle, blocks)
        self._changed.set()
        return digest

    def take(self, source: Source, size: int, *, mark: str | None = None, digest: str | None = None) -> Path:
        """Store a payload of exactly `size` bytes that are read from `source`; nothing stays of one that is refused.

        Args:
            mark: 32 hexadecimal digits for the file's name; random by default.
            digest: demands this payload.

        Raises:
            PayloadError: too few bytes, no room, or no payload as it was sent and signed.
        """
        path = self._path(mark or secrets.token_hex(16))

        def check(part: Path) -> None:
            try:
                read_payload(part, key=self.key, digest=digest)
            except PayloadError as error:
                raise PayloadError(error.what, fix=error.fix) from None  # the part's name means nothing to anybody

        with self._room(size), whole_file(path, check) as handle:
            buffer = memoryview(bytearray(min(_BLOCK, size)))
            left = size
            while left:
                count = source.readinto(buffer[:left])
                if not count:
                    raise PayloadError(f"This payload is cut short: {size - left:,} bytes of {size:,}.")
                write_blocks(handle, [buffer[:count]])
                left -= count
        self._changed.set()
        return path

    def waiting(self) -> list[Path]:
        """Files that wait to be read, in the order in which they came."""
        return sorted(path for path in self.folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))

    def payloads(self, timeout: float | None = None) -> Iterator[Payload]:
        """Payloads in the order in which they came, each removed when the next is asked for.

        A reader that dies or leaves while it works on one finds it there again. A file that is none, or not signed
        with the key, is set aside as `*.refused`, with a warning.

        Args:
            timeout: seconds without a new one after which this ends; None waits until the inbox is closed.

        Raises:
            PayloadError: another program reads from this folder.
        """
        with self._reading():
            while True:
                self._changed.clear()
                is_last = self._closed
                found = self.waiting()
                for path in found:
                    yield from self._one(path)
                if not found and (is_last or not self._wait(timeout)):
                    return

    def close(self) -> None:
        """End the iteration over what is there once it is read."""
        self._closed = True
        self._changed.set()

    def clear_parts(self) -> None:
        """Remove what a killed program left half-written; only for who knows that no other one is writing."""
        for part in self.folder.glob(f".*{PART}"):
            part.unlink(missing_ok=True)

    def marks(self) -> list[str]:
        """The marks of files that wait."""
        found = (re.fullmatch(rf"\d+-([0-9a-f]{{32}}){re.escape(SUFFIX)}", path.name) for path in self.waiting())
        return [match.group(1) for match in found if match]

    def _path(self, mark: str) -> Path:
        return self.folder / f"{time.time_ns():020d}-{mark}{SUFFIX}"

    def _one(self, path: Path) -> Iterator[Payload]:
        try:
            payload = read_payload(path, key=self.key)
        except PayloadError as error:
            log.warning("set aside: %s", error)
            with suppress(FileNotFoundError):
                path.replace(path.with_suffix(".refused"))
            return
        yield payload
        path.unlink(missing_ok=True)

    def _wait(self, timeout: float | None) -> bool:
        """Whether something may have come before the time was over."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._changed.wait(POLL):
            if self.waiting():
                return True
            if end is not None and time.monotonic() >= end:
                return False
        return True

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Hold room for a file while it is written."""
        with self._lock:
            used = self._coming
            for path in self.waiting():
                with suppress(FileNotFoundError):
                    used += path.stat().st_size
            if used + size > self.capacity:
                raise InboxFullError(
                    f"This inbox is full: {used:,} of {self.capacity:,} bytes, and {size:,} more are needed.",
                    where=str(self.folder),
                    fix="Read what is there, or give it more room.",
                )
            self._coming += size
        try:
            yield
        finally:
            with self._lock:
                self._coming -= size

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with held(self.folder / ".reader.lock", "reads from"):
            yield


@contextmanager
def held(path: Path, does: str) -> Iterator[None]:
    """Hold a lock in a folder.

    Raises:
        PayloadError: another program has it.
    """
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise PayloadError(f"Another program {does} this inbox.", where=str(path.parent), fix="End it first.") from None
    try:
        yield
    finally:
        lock.release()
