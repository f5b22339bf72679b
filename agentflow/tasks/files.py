"""Tasks that read their items from a file: records to items, what is left out said aloud, ids unique."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from agentflow.errors import DataError, UserError
from agentflow.tasks.base import Item, Task, TaskSettings, check_limit
from agentflow.tasks.draws import Draws
from agentflow.tasks.reading import load_records
from agentflow.tasks.records import Record

logger = logging.getLogger(__name__)


class FileSettings(TaskSettings):
    """Settings of every task that reads a file."""

    shuffle: bool = Field(default=False, description="Put the items in a seeded random order.")


@dataclass(frozen=True)
class LeftOut:
    """A record that gives no item. `asked`: the settings asked for it, so it is no news to the user."""

    reason: str
    asked: bool = False


class FileTask(Task):
    """A task with one item per record of a file, or per part of one."""

    needs_data: ClassVar[bool] = True
    settings: FileSettings

    def parts(self, record: Record) -> Iterable[Record]:
        """Return what makes an item each; a task whose file nests them takes its records apart here."""
        return (record,)

    @abstractmethod
    def read(self, record: Record, seed: int) -> Item | LeftOut:
        """Turn one record into an item, or say why not; `DataError` naming the record if it is malformed."""

    def items(self, *, data: Path | None, limit: int | None, seed: int) -> list[Item]:
        """Return the file's items; see `Task.items`. The whole file is checked whatever the limit."""
        check_limit(limit)
        if data is None:
            raise UserError(f"Task '{self.name}' needs a data file.", fix="Name one with --data.")
        found = read_items(data, lambda record: self.read(record, seed), self.parts)
        return (Draws(f"{seed}:shuffle").shuffled(found) if self.settings.shuffle else found)[:limit]


def read_items(
    path: Path,
    read: Callable[[Record], Item | LeftOut],
    parts: Callable[[Record], Iterable[Record]] = lambda record: (record,),
) -> list[Item]:
    """Return the items of a file in its order and log how many were left out, and why.

    Raises `DataError` for an unreadable file, for an id that comes twice and when no record can be used.
    """
    items: list[Item] = []
    places: dict[str, str] = {}
    left_out: Counter[LeftOut] = Counter()
    for record in (part for whole in load_records(path) for part in parts(whole)):
        result = read(record)
        if isinstance(result, LeftOut):
            left_out[result] += 1
            continue
        if result.id in places:
            raise record.wrong(f"The id '{result.id}' was used before, at {places[result.id]}.")
        places[result.id] = record.where
        items.append(result)
    for reason, count in left_out.items():
        level = logging.INFO if reason.asked else logging.WARNING
        logger.log(level, "%s: left out %d of %d: %s", path, count, left_out.total() + len(items), reason.reason)
    if not items:
        reasons = "; ".join(sorted(reason.reason for reason in left_out))
        raise DataError(f"No record can be used: {reasons}.", where=str(path))
    return items
