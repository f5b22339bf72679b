"""Results of a run at rest: `results.jsonl`, one line for each finished unit, appended; a unit's last line counts.

A file for each result would cost a tenth of a millisecond and more, whatever is in it; a line costs a hundredth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from agentflow.runtime.lines import Log
from agentflow.runtime.records import Record
from agentflow.runtime.scheduler import Unit

FILE = "results.jsonl"


class ResultLog:
    """The results of one run, as its process writes and finds them; what is missing, or cut, runs again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._log = Log(self._path)
        self._places = {record.unit: place for place, record in _lines(self._path)}

    def save(self, record: Record) -> None:
        """Append a result."""
        self._places[record.unit] = self._log.append(record.to_json())

    def find(self, unit: Unit) -> Record | None:
        """A unit's result, None where there is none that can be read."""
        if unit not in self._places:
            return None
        with self._path.open("rb") as file:
            file.seek(self._places[unit])
            return _record(file.readline())

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def read_results(folder: Path) -> dict[Unit, Record]:
    """All results of a run that can be read, in the order in which units were first finished."""
    return {record.unit: record for _, record in _lines(folder / FILE)}


def _lines(path: Path) -> Iterator[tuple[int, Record]]:
    """Every record with the place of its line; lines that are none are left out."""
    if not path.exists():
        return
    place = 0
    with path.open("rb") as file:
        for line in file:
            record = _record(line)
            if record is not None:
                yield place, record
            place += len(line)


def _record(line: bytes) -> Record | None:
    try:
        return Record.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError):
        return None
