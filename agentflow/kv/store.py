"""Payloads by digest: in memory while there is room, else as files; freed when no one refers to them.

The key of a payload is the digest that its file has or would have: BLAKE3 over header and tensors, without its
stats. Putting one hashes its tensors once, where they are and as they are (about 4 GB/s), and a file written later
re-uses that digest, so nothing is serialised to find out its name; equal payloads are kept once.

References are counted in each process for itself. `put` and `retain` add one, `free` takes one away; at none the
payload leaves this process. Other processes that opened the same folder can `retain` a payload by its digest once it
is a file (`persist`), and then hold it for themselves: see `kv.holders`.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from agentflow.errors import PayloadError
from agentflow.kv.holders import Holder
from agentflow.kv.ledger import Entry, Ledger, unknown
from agentflow.kv.payload import Payload
from agentflow.kv.wire import payload_digest, read_payload, write_payload

MEMORY_BYTES = 2 << 30


@dataclass(frozen=True)
class Usage:
    """What a store holds: payloads in this process, bytes of those in memory, and bytes of files of all processes."""

    payloads: int
    memory_bytes: int
    disk_bytes: int


class PayloadStore:
    """A store of payloads, safe for threads and for several processes on one folder.

    Args:
        folder: for files; made when missing. Each process has a part of its own in it, which goes when it closes
            the store or dies.
        memory_bytes: what payloads in memory may take; beyond it the least recently used ones become files.
            Payloads that share tensors are counted in full.
        disk_bytes: what files of all processes together may take; None for whatever the disk holds.
        key: signs the files, and is demanded of those of other processes.

    Methods raise `PayloadError` for a digest that is not held, a full store, and a store that was closed or has
    come through a fork.
    """

    def __init__(
        self, folder: Path, *, memory_bytes: int = MEMORY_BYTES, disk_bytes: int | None = None, key: bytes | None = None
    ) -> None:
        self.folder, self.memory_bytes, self.disk_bytes = folder, memory_bytes, disk_bytes
        self._key, self._holder, self._pid = key, Holder(folder), os.getpid()
        self._ledger = Ledger()
        self._digests: weakref.WeakKeyDictionary[Payload, str] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()  # the table; never held while a file is written or read
        self._filing = threading.Lock()  # files of this process; taken before the table's lock

    def put(self, payload: Payload) -> str:
        """Keep a payload, or one more reference to an equal one; returns its digest.

        Raises:
            PayloadError: it doesn't fit into the budgets; it is then not held.
        """
        with self._lock:
            self._usable()
            digest = self._digests.get(payload)
        digest = digest or payload_digest(payload)
        with self._lock:
            self._digests[payload] = digest
            self._ledger.add(digest, payload)
        try:
            self._make_room()
        except BaseException:
            self.free(digest)
            raise
        return digest

    def get(self, digest: str) -> Payload:
        """The payload, by reference where it is in memory or in use, else mapped from its file and verified."""
        with self._lock:
            entry = self._held(digest)
            found = entry.at_hand
        if found:
            return found
        payload = replace(read_payload(self._holder.path(digest), key=self._key, digest=digest), stats=entry.stats)
        with self._lock:
            found = entry.at_hand  # another thread was quicker
            if not found:
                found, entry.known = payload, weakref.ref(payload)
                self._digests[payload] = digest
        return found

    def retain(self, digest: str) -> None:
        """Add a reference, also to a payload that only another process holds, if it is a file there."""
        if self._retained(digest):
            return
        with self._filing:
            if self._retained(digest):  # by now, by another thread
                return
            if not self._holder.adopt(digest):
                raise unknown(digest)
            with self._lock:
                self._ledger.add_filed(digest)

    def free(self, digest: str) -> None:
        """Take a reference away; with the last one the payload leaves this process. Who has it keeps it."""
        with self._lock:
            self._usable()
            last = self._ledger.subtract(digest)
            if last and last.filed:
                self._holder.drop(digest)

    def persist(self, digest: str) -> Path:
        """Make sure the payload is a file that other processes can retain; returns its path, valid until freed."""
        with self._filing:
            with self._lock:
                entry = self._held(digest)
            self._file(digest, entry)
        return self._holder.path(digest)

    def usage(self) -> Usage:
        """What is held now."""
        with self._lock:
            payloads, memory = len(self._ledger.entries), self._ledger.memory
        return Usage(payloads, memory, self._holder.used())

    def close(self) -> None:
        """Give up everything this process holds. Payloads that were taken out stay usable."""
        with self._filing, self._lock:
            self._ledger = Ledger()
            self._holder.close()

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._ledger.entries

    def __enter__(self) -> PayloadStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _usable(self) -> None:
        if not self._holder.close.alive or os.getpid() != self._pid:
            state = "was closed" if os.getpid() == self._pid else "belongs to the process that forked this one"
            raise PayloadError(f"This payload store {state}.", where=str(self.folder), fix="Open one of its own.")

    def _retained(self, digest: str) -> bool:
        with self._lock:
            self._usable()
            if digest not in self._ledger.entries:
                return False
            self._ledger.use(digest).count += 1
            return True

    def _held(self, digest: str) -> Entry:
        self._usable()
        return self._ledger.use(digest)

    def _make_room(self) -> None:
        """Turn the least recently used payloads into files until memory is within its budget."""
        if self._ledger.memory <= self.memory_bytes:
            return
        with self._filing:
            while True:
                with self._lock:
                    oldest = self._ledger.oldest() if self._ledger.memory > self.memory_bytes else None
                if oldest is None:
                    return
                self._file(*oldest)
                with self._lock:
                    self._ledger.evict(*oldest)

    def _file(self, digest: str, entry: Entry) -> None:
        """Write an entry's file unless there is one; needs `_filing`."""
        payload = entry.resident
        if entry.filed or payload is None:
            return
        with self._holder.space(payload.nbytes, self.disk_bytes):
            write_payload(payload, self._holder.path(digest), key=self._key, digest=digest)
        with self._lock:
            if self._ledger.entries.get(digest) is entry:
                entry.filed = True
            else:  # freed in the meantime
                self._holder.drop(digest)
