"""Payload files that several processes share: each has a folder of its own, and links are the references.

    root/lock                            held while a holder joins, and while a disk budget is checked and used
    root/holder-<pid>-<random>/alive     locked as long as that process lives; the system unlocks it when it dies
    root/holder-<pid>-<random>/<digest>.safetensors

A process that takes over another's payload makes a hard link to the file, so the file system counts who holds it:
the bytes go when the last link goes, whoever made the first. There is no table that a crash could leave wrong. What
dead processes held, unfinished files included, is removed by whoever opens the folder next.
"""

from __future__ import annotations

import os
import secrets
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from agentflow.errors import PayloadError
from agentflow.kv.disk import PART

SUFFIX = ".safetensors"
_PREFIX = "holder-"


class Holder:
    """This process's part of a store's folder; a local one, since locks and links are not what they seem over NFS."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        alive = FileLock(self.folder / "alive", thread_local=False)
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(root / "lock")
            with self.lock:
                remove_dead(root)
                self.folder.mkdir()
                alive.acquire(timeout=0)
        except OSError as error:
            raise PayloadError(
                f"Payloads can't be kept here: {error.strerror or error}.",
                where=str(root),
                fix="Choose another folder.",
            ) from error
        self.close = weakref.finalize(self, _leave, self.folder, alive, os.getpid())

    def path(self, digest: str) -> Path:
        """Where this process's link to a payload is, or would be."""
        return self.folder / f"{digest}{SUFFIX}"

    def adopt(self, digest: str) -> bool:
        """Link a payload that another process holds; whether one does."""
        mine = self.path(digest)
        for theirs in self.root.glob(f"{_PREFIX}*/{digest}{SUFFIX}"):
            try:
                os.link(theirs, mine)
            except FileExistsError:
                return True
            except FileNotFoundError:
                continue  # freed in this moment; another may hold it still
            except OSError:  # a file system without hard links
                part = mine.with_suffix(PART)
                try:
                    shutil.copyfile(theirs, part)
                except FileNotFoundError:
                    continue
                part.replace(mine)
            return True
        return False

    def drop(self, digest: str) -> None:
        """Give up this process's link."""
        self.path(digest).unlink(missing_ok=True)

    @contextmanager
    def space(self, needed: int, budget: int | None) -> Iterator[None]:
        """Write a file of `needed` bytes within a budget for all holders, who can't all take the same rest.

        Raises:
            PayloadError: the rest is too small.
        """
        if budget is None:
            yield
            return
        with self.lock:
            used = self.used()
            if used + needed > budget:
                raise PayloadError(
                    f"The payload store is full: its files take {used:,} of {budget:,} bytes, and {needed:,} more are "
                    "needed.",
                    where=str(self.root),
                    fix="Free payloads that are done with, raise its budgets, or send less: a compacting channel, or "
                    "quantised caches.",
                )
            yield

    def used(self) -> int:
        """Bytes of all payload files in the folder, unfinished ones included, each counted once."""
        sizes = {}
        for name in (f"{_PREFIX}*/*{SUFFIX}", f"{_PREFIX}*/.*{PART}"):
            for path in self.root.glob(name):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    sizes[stat.st_dev, stat.st_ino] = stat.st_size
        return sum(sizes.values())


def remove_dead(root: Path) -> None:
    """Remove what processes held that are gone; call it with the folder's lock."""
    for folder in _holders(root):
        lock = FileLock(folder / "alive")
        with suppress(Timeout, OSError), lock.acquire(timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


def _holders(root: Path) -> Iterator[Path]:
    return (path for path in root.glob(f"{_PREFIX}*-*") if path.is_dir())


def _leave(folder: Path, alive: FileLock, pid: int) -> None:
    if os.getpid() == pid:  # and not a forked child, which must not clear its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
        alive.release(force=True)
