"""Results of a stored run, for tests that look at them, lose some, or damage them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from agentflow.runtime.kept import FILE
from agentflow.runtime.scheduler import Unit


def lines(folder: Path) -> dict[Unit, bytes]:
    """The last whole line of every unit."""
    found = {}
    for line in (folder / FILE).read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            record = json.loads(line)
            found[Unit(record["item"], record["node"], record["child"])] = line
    return found


def lose(folder: Path, gone: Callable[[Unit], bool]) -> None:
    """Take results out, as if they had never been stored."""
    (folder / FILE).write_bytes(b"".join(line for unit, line in lines(folder).items() if not gone(unit)))
