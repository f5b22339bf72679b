"""A log of JSON values, one a line, that is only ever appended to: each line is whole, or as if it were not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

encoded = json.JSONEncoder(ensure_ascii=False).encode
"""A value as one line of JSON; made once, since `json.dumps` makes an encoder for every value."""


class Log:
    """The end of a log, as one process appends to it.

    A line is handed to the system before `append` returns, so it outlives the process; it is not forced to the disk, so
    it may not outlive the machine.
    """

    def __init__(self, path: Path) -> None:
        cut_half_line(path)
        self._file = path.open("ab")

    def append(self, value: Any) -> int:
        """Write a line; where it begins."""
        place = self._file.tell()
        self._file.write(encoded(value).encode() + b"\n")
        self._file.flush()
        return place

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cut_half_line(path: Path) -> None:
    """Take a last line that was cut by a crash off a log, so that what is appended begins a line."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
