"""An archive of games, unpacked once into the cache folder.

Nothing in a tar file is trusted: only files of the layout's names are written, by names that are checked here; links,
devices and paths that leave the folder condemn the whole archive; what is unpacked is counted while it streams.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from blake3 import blake3
from filelock import FileLock

from agentflow.errors import DataError
from agentflow.folders import cache_root
from agentflow.tasks.alfworld.gamefile import MAX_BYTES
from agentflow.tasks.alfworld.games import GAME, LAYOUT, TRAJECTORY

_WANTED = re.compile(
    rf"(?:{re.escape(LAYOUT)}/)?(?:train|valid_train|valid_seen|valid_unseen)"
    rf"/[\w.,+-]{{1,200}}/[\w.,+-]{{1,200}}/(?:{re.escape(GAME)}|{re.escape(TRAJECTORY)})",
    re.ASCII,
)
_DRIVE = re.compile(r"[A-Za-z]:")
_OPENERS = ((b"\xfd7zXZ\0", lzma.open), (b"\x1f\x8b", gzip.open), (b"BZh", bz2.open))
_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError)


@dataclass(frozen=True)
class Limits:
    """Most bytes of one file, most bytes of the whole archive once unpacked, and most entries."""

    file_bytes: int = MAX_BYTES
    total_bytes: int = 4 * 1024**3
    entries: int = 100_000


def games_folder(data: Path, *, limits: Limits | None = None) -> Path:
    """Return the folder of games that `data` is or, for an archive, is unpacked to.

    The folder's name is the archive's digest: the same archive is unpacked once, by whichever process comes first,
    and a process that is killed meanwhile leaves nothing that looks complete.

    Raises:
        DataError: neither a folder nor a tar file (plain, xz, gzip, bzip2), or one that is damaged, too large or
            that tries to write elsewhere.
    """
    if data.is_dir():
        return data
    if not data.is_file():
        raise DataError("There is no such file or folder.", where=str(data))
    home = cache_root() / "alfworld"
    try:
        target = home / _digest(data)
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f"{target.name}.lock"):
            if not target.is_dir():
                _unpack_whole(data, target, limits or Limits())
    except _DAMAGE as error:
        raise _wrong(data, f"The archive can't be unpacked ({error}).") from None
    return target


def _digest(data: Path) -> str:
    hasher = blake3()
    with data.open("rb") as file:
        while chunk := file.read(1024**2):
            hasher.update(chunk)
    return hasher.hexdigest()[:32]


def _unpack_whole(data: Path, target: Path, limits: Limits) -> None:
    part = Path(tempfile.mkdtemp(prefix=f".{target.name[:8]}-", dir=target.parent))
    try:
        with data.open("rb") as raw:
            written = _unpack(data, raw, part, limits)
        if not written:
            raise _wrong(data, f"The archive holds no games ({LAYOUT}/SPLIT/TASK/TRIAL/{GAME}).")
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unpack(data: Path, raw: IO[bytes], part: Path, limits: Limits) -> int:
    """Write the games of an archive below `part`; return how many files."""
    written = 0
    with (
        _Bounded(_decompressed(raw), limits) as stream,
        tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar,
    ):
        for count, member in enumerate(tar, start=1):
            if count > limits.entries:
                raise _wrong(data, f"The archive has more than {limits.entries:,} entries.")
            name = _checked_name(data, member)
            if member.isdir() or not _WANTED.fullmatch(name):
                continue
            if member.size > limits.file_bytes:
                raise _wrong(data, f"'{name}' is larger than {limits.file_bytes:,} bytes.")
            source = tar.extractfile(member)
            assert source is not None  # a regular file always has contents
            place = part / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read(limits.file_bytes))
            written += 1
    return written


def _checked_name(data: Path, member: tarfile.TarInfo) -> str:
    shown = repr(member.name[:200])
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _wrong(data, f"The archive holds {shown}, which is neither a plain file nor a folder.")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or _DRIVE.match(member.name):
        raise _wrong(data, f"The archive holds {shown}, a path that leaves its folder.")
    return path.as_posix()


def _decompressed(raw: IO[bytes]) -> IO[bytes]:
    magic = raw.read(6)
    raw.seek(0)
    opener = next((opener for start, opener in _OPENERS if magic.startswith(start)), None)
    return cast("IO[bytes]", opener(raw)) if opener else raw


def _wrong(data: Path, what: str) -> DataError:
    return DataError(what, where=str(data), fix="Give a folder of games, or a tar archive of one.")


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than the limits allow, whatever the headers in it claim."""

    def __init__(self, inner: IO[bytes], limits: Limits) -> None:
        self._inner, self._limits = inner, limits

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._limits.file_bytes:
            raise ValueError("an entry is too large")
        found = self._inner.read(size)
        self._check(self._inner.tell())
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:
            self._check(offset)
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _check(self, position: int) -> None:
        if position > self._limits.total_bytes:
            raise ValueError(f"more than {self._limits.total_bytes:,} bytes once unpacked")
