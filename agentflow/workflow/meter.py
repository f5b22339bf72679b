"""A bound on what one rendering may cost, so that no template can hang or fill the memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

LONGEST_TEXT = 4_000_000
MOST_STEPS = 1_000_000
MOST_ITEMS = 1_000_000
MOST_BITS = 20_000
LONGEST_SECONDS = 10.0


class CostlyTemplateError(Exception):
    """A template would need too much time or memory; the message says of what."""


@dataclass
class Meter:
    """Steps left to one rendering, and the moment at which it must have ended."""

    steps: int
    deadline: float


_current: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered(steps: int = MOST_STEPS, seconds: float = LONGEST_SECONDS) -> Iterator[None]:
    """Count the steps of everything that is rendered inside."""
    token = _current.set(Meter(steps, time.monotonic() + seconds))
    try:
        yield
    finally:
        _current.reset(token)


def charge(steps: int = 1) -> None:
    """Take steps from the running meter. Raises `CostlyTemplateError` when none are left."""
    meter = _current.get()
    if meter is None:
        return
    meter.steps -= steps
    if meter.steps < 0:
        raise CostlyTemplateError(f"the template takes more than {MOST_STEPS:,} steps")
    if time.monotonic() > meter.deadline:
        raise CostlyTemplateError(f"the template takes more than {LONGEST_SECONDS:g} seconds")


def check_length(length: int) -> None:
    """Refuse a text that would be too long."""
    if length > LONGEST_TEXT:
        raise CostlyTemplateError(f"the text would be longer than {LONGEST_TEXT:,} characters")


def check_items(count: int) -> None:
    """Refuse a list that would be too long."""
    if count > MOST_ITEMS:
        raise CostlyTemplateError(f"a list would hold more than {MOST_ITEMS:,} items")


def check_bits(bits: float) -> None:
    """Refuse a whole number that would be too large."""
    if bits > MOST_BITS:
        raise CostlyTemplateError("a number would be too large")


def check_printable(value: Any) -> None:
    """Refuse a container whose text would be too long; shared parts count each time they are printed."""
    total, pending = 0, [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            total += len(part) + 2
        elif isinstance(part, Mapping):
            pending += part.keys()
            pending += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            pending += part
        total += 4
        check_length(total)


def counted(items: Iterable[Any]) -> Any:
    """Charge for one pass over `items`; a stream of unknown length is first read into a list."""
    if isinstance(items, Sized):
        charge(len(items) + 1)
        return items
    return _read(items)


def _read(items: Iterable[Any]) -> list[Any]:
    read = []
    for item in items:
        charge()
        read.append(item)
    return read
