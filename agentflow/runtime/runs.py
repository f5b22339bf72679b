"""Stored runs: `runs/<id>/` with a manifest, an append-only event log and one file for each result.

The event log alone is enough to rebuild the report of a run. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentflow.errors import RunError
from agentflow.runtime.events import Event
from agentflow.runtime.results import NodeResult
from agentflow.runtime.scheduler import Unit

UNLOGGED = frozenset({"node_token"})


class RunStore:
    """One run's folder. Also a listener: every event but single tokens is appended to `events.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events = (folder / "events.jsonl").open("a", encoding="utf-8")

    @property
    def id(self) -> str:
        """The run's name, unique in its parent folder."""
        return self.folder.name

    @classmethod
    def create(cls, root: Path, name: str, manifest: dict[str, Any]) -> RunStore:
        """Start a run of the workflow `name` below `root`."""
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(2)}"
        folder = root / run_id
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"The folder for runs can't be made: {error.strerror or error}.", where=str(root)) from None
        try:
            write_json(folder / "run.json", {"id": run_id, "workflow": name, **manifest})
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RunError(f"The run can't be stored: {error.strerror or error}.", where=str(root)) from None
        return cls(folder)

    def __call__(self, event: Event) -> None:
        """Append one event to the log."""
        if event.kind not in UNLOGGED:
            self._events.write(json.dumps(asdict(event), ensure_ascii=False) + "\n")
            self._events.flush()

    def save_result(self, unit: Unit, result: NodeResult) -> Path:
        """Store a unit's result atomically."""
        child = "" if unit.child is None else f".{unit.child}"
        path = self.folder / "results" / safe_name(unit.item) / f"{unit.node}{child}.json"
        write_json(path, result.to_json())
        return path

    def payload_path(self, name: str) -> Path:
        """Where a payload that is kept belongs."""
        return self.folder / "payloads" / f"{safe_name(name)}.safetensors"

    def close(self) -> None:
        """Flush the log."""
        self._events.close()


def safe_name(name: str) -> str:
    """A file name for foreign text: letters, digits and `-_.` stay; long names are cut."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:120] or "_"


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that the file is either complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
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
