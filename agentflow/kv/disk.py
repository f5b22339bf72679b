"""Files that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PART = ".part"
_IOV_MAX = 1024  # blocks in one writev; POSIX promises 16, Linux and macOS take 1,024


@contextmanager
def whole_file(path: Path, check: Callable[[Path], object] | None = None) -> Iterator[int]:
    """A descriptor to write to; the file appears under `path` only when it is complete and on disk.

    The rename is synchronised too: after a power cut the name leads to the new content or to the old one.

    Args:
        check: given the complete file before it gets its name; where it raises, there will be none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=PART, dir=path.parent)
    try:
        try:
            yield handle
            if check is not None:
                check(Path(name))
            os.fsync(handle)
        finally:
            os.close(handle)
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    sync_folder(path.parent)


def like_parent(folder: Path) -> None:
    """Let whoever may read the folder above read this one, which was made as a private one, and its files."""
    mode = folder.parent.stat().st_mode & 0o777
    for file in folder.iterdir():
        file.chmod(mode & 0o666)
    folder.chmod(mode)


def sync_folder(folder: Path) -> None:
    """Put the names in `folder` on disk, where the system can (Windows opens no folders)."""
    with suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_blocks(handle: int, blocks: Sequence[memoryview]) -> None:
    """Write all bytes of `blocks` at the descriptor's place, in as few calls as the system lets."""
    if not hasattr(os, "writev"):
        for block in blocks:
            _write_all(handle, block)
        return
    for first in range(0, len(blocks), _IOV_MAX):
        batch = list(blocks[first : first + _IOV_MAX])
        written = os.writev(handle, batch)
        for block in batch:  # a short write: the rest goes block by block
            if written < len(block):
                _write_all(handle, block[written:])
            written = max(0, written - len(block))


def _write_all(handle: int, block: memoryview) -> None:
    while block:
        block = block[os.write(handle, block) :]
