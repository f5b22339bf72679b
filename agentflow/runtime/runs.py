"""Stored runs: `runs/<id>/` with a manifest, an append-only event log, and one of results (`runtime.kept`).

The event log alone is enough to rebuild the report of a run. Lines and other files are whole, or as if they were not
there. One process at a time writes into a run.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3
from filelock import FileLock, Timeout

from agentflow.errors import RunError
from agentflow.runtime.events import Event
from agentflow.runtime.kept import ResultLog
from agentflow.runtime.lines import Log, encoded
from agentflow.runtime.records import FORM, Record
from agentflow.runtime.results import ItemResult
from agentflow.runtime.scheduler import Unit

UNLOGGED = frozenset({"node_token"})
LOCK = ".lock"


class RunStore:
    """One run's folder. Also a listener: every event but single tokens is appended to `events.jsonl`.

    Args:
        lock: of the folder, held by this process until the store is closed.
        resumed: whether the folder may hold results of an earlier process.
        forced: nodes whose stored results are not used.
    """

    def __init__(self, folder: Path, lock: FileLock, *, resumed: bool = False, forced: Collection[str] = ()) -> None:
        self.folder, self.resumed, self._lock, self._forced = folder, resumed, lock, frozenset(forced)
        self._results = ResultLog(folder)
        self._events = Log(folder / "events.jsonl")

    @property
    def id(self) -> str:
        """The run's name, unique in its parent folder."""
        return self.folder.name

    @classmethod
    def create(cls, root: Path, name: str, manifest: Mapping[str, Any]) -> RunStore:
        """Start a run of the workflow `name` below `root`."""
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(2)}"
        folder = root / run_id
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"The folder for runs can't be made: {error.strerror or error}.", where=str(root)) from None
        try:
            lock = locked(folder)
            write_json(folder / "run.json", {"id": run_id, "workflow": name, "form": FORM, **manifest})
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RunError(f"The run can't be stored: {error.strerror or error}.", where=str(root)) from None
        return cls(folder, lock)

    @classmethod
    def open(cls, folder: Path, *, forced: Collection[str] = ()) -> RunStore:
        """Go on with a run that was stopped.

        Raises:
            RunError: no such run, one that another process is writing, or one of another version.
        """
        check_form(folder)
        lock = locked(folder)
        try:
            (folder / "outcome.json").unlink(missing_ok=True)
            return cls(folder, lock, resumed=True, forced=forced)
        except BaseException:
            lock.release()
            raise

    def __call__(self, event: Event) -> None:
        """Append one event to the log."""
        if event.kind not in UNLOGGED:
            self._events.append(vars(event))

    def save(self, record: Record) -> None:
        """Keep what a finished unit leaves behind."""
        self._results.save(record)

    def find(self, unit: Unit) -> Record | None:
        """What an earlier process kept of a unit; None where that is nothing, damaged, or not wanted any more."""
        if not self.resumed or unit.node in self._forced:
            return None
        return self._results.find(unit)

    def save_outcome(self, results: Collection[ItemResult], *, cancelled: bool) -> None:
        """Store outputs and errors of every item, once the run has ended."""
        failed = any(r.errors for r in results)
        state = "stopped" if cancelled else "failed" if failed else "done"
        items = {r.item: {"outputs": r.outputs, "errors": r.errors, "skipped": r.skipped} for r in results}
        write_json(self.folder / "outcome.json", {"state": state, "items": items})

    def payload_path(self, name: str) -> Path:
        """Where a payload that is kept belongs."""
        return self.folder / "payloads" / f"{safe_name(name)}.safetensors"

    def close(self) -> None:
        """Close the logs, and let other processes at the run."""
        self._events.close()
        self._results.close()
        self._lock.release()


def locked(folder: Path) -> FileLock:
    """The lock of a run's folder, held.

    Raises:
        RunError: another process has it.
    """
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunError("Another process is at work on this run.", where=str(folder), fix="Wait for its end.") from None
    return lock


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a run was started with.

    Raises:
        RunError: no such run.
    """
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise RunError("There is no such run.", where=str(folder), fix="`agentflow runs list` shows what there is.")
    return found


def check_form(folder: Path) -> None:
    """Refuse a run of another version.

    Raises:
        RunError: it is one, or none at all.
    """
    if read_manifest(folder).get("form") != FORM:
        fix = "Run the workflow anew."
        raise RunError("This run was stored by another version and can't be resumed.", where=str(folder), fix=fix)


def safe_name(name: str) -> str:
    """A file name for foreign text: letters, digits and `-_.` stay; a name that had to be changed gets a mark."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:120] or "_"
    if safe == name:
        return safe
    return f"{safe}-{blake3(name.encode('utf-8', 'surrogatepass')).hexdigest(4)}"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON, a line for each key, so that the file is either complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    lines = ",\n".join(f" {encoded(key)}: {encoded(inner)}" for key, inner in value.items())
    part.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    part.replace(path)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All events of a stored run; a last line that was cut by a crash is left out.

    Raises:
        RunError: no such run, or a damaged line before the end.
    """
    try:
        lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        raise RunError("There is no such run.", where=str(folder)) from None
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise RunError("The event log is damaged.", where=f"{folder / 'events.jsonl'}:{number}") from None
    return events
