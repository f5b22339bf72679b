"""One record of a data file that knows where it stands, so that every complaint about it does too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentflow.errors import DataError


@dataclass(frozen=True)
class Record:
    """A JSON object of a data file: `where` is "file:line" for JSON Lines, "file, record n" otherwise.

    `index` counts from 0 over the file's records.
    """

    path: Path
    where: str
    index: int
    values: dict[str, Any]

    def wrong(self, what: str) -> DataError:
        """Return (not raise) a `DataError` that names this record."""
        return DataError(what, where=self.where)

    def need(self, key: str) -> Any:
        """Return the value of a key, None included; `DataError` if the key is missing."""
        if key not in self.values:
            raise self.wrong(f"The record has no '{key}'.")
        return self.values[key]

    def text(self, *keys: str) -> str:
        """Return the non-empty text under the first of these keys that is there; numbers become text."""
        key = next((key for key in keys if key in self.values), keys[0])
        value = self.need(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"'{key}' must be a text that is not empty.")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of texts (one bare text counts as a list of one); a missing key or null is []."""
        value = self.values.get(key)
        if value is None:
            return []
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
            raise self.wrong(f"'{key}' must be a text or a list of texts.")
        return listed

    def rows(self, key: str) -> list[Any]:
        """Return the non-empty list under a key."""
        value = self.need(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(f"'{key}' must be a list that is not empty.")
        return value
