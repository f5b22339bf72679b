"""Which payloads a process holds, how often, and which of them it used least recently. Its owner does the locking."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentflow.errors import PayloadError
from agentflow.kv.payload import Payload


@dataclass(eq=False)
class Entry:
    """A payload held here.

    Attributes:
        resident: the payload while it is in the memory tier.
        stats: that it was put with; they are in no file.
        count: references to it.
        filed: whether this process has a file of it.
        known: the payload wherever someone still uses it, so that it is neither read nor verified twice.
    """

    resident: Payload | None
    stats: Mapping[str, float] = field(default_factory=dict)
    count: int = 1
    filed: bool = False
    known: weakref.ref[Payload] | None = None

    @property
    def at_hand(self) -> Payload | None:
        """The payload, if it need not be read."""
        return self.resident or (self.known() if self.known else None)


class Ledger:
    """Entries by digest, the least recently used first; `memory` is the bytes of resident payloads."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, Entry] = OrderedDict()
        self.memory = 0

    def use(self, digest: str) -> Entry:
        """The entry, which is now the most recently used.

        Raises:
            PayloadError: no such payload is held.
        """
        if digest not in self.entries:
            raise unknown(digest)
        self.entries.move_to_end(digest)
        return self.entries[digest]

    def add(self, digest: str, payload: Payload) -> None:
        """One more reference to a payload, or the first."""
        if digest in self.entries:
            self.use(digest).count += 1
        else:
            self.entries[digest] = Entry(payload, payload.stats)
            self.memory += payload.nbytes

    def add_filed(self, digest: str) -> None:
        """One more reference to a payload of which there is a file."""
        entry = self.entries.setdefault(digest, Entry(None, count=0))
        entry.count, entry.filed = entry.count + 1, True

    def subtract(self, digest: str) -> Entry | None:
        """One reference less; the entry if it was the last."""
        entry = self.use(digest)
        entry.count -= 1
        if entry.count:
            return None
        self.evict(digest, entry)
        return self.entries.pop(digest)

    def evict(self, digest: str, entry: Entry) -> None:
        """Out of memory, unless the entry is gone or out already."""
        if self.entries.get(digest) is entry and entry.resident is not None:
            self.memory -= entry.resident.nbytes
            entry.known, entry.resident = weakref.ref(entry.resident), None

    def oldest(self) -> tuple[str, Entry] | None:
        """The resident payload that was used least recently."""
        return next(((d, e) for d, e in self.entries.items() if e.resident is not None), None)


def unknown(digest: str) -> PayloadError:
    """The error for a digest that is not held."""
    return PayloadError(
        f"No payload {digest[:12]}… is held here.",
        fix="Retain it before its last holder frees it; one of another process must be persisted there first.",
    )
