"""Stored runs as people look at them: which there are, how far each came, and what it holds."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from agentflow.errors import RunError, did_you_mean
from agentflow.runtime.kept import read_results
from agentflow.runtime.runs import LOCK, locked, read_events, read_manifest
from agentflow.workflow.frames import address

State = Literal["running", "stopped", "failed", "done"]
LAST = "last"
"""Stands for the newest run."""

_ENDED = {"node_finished": "done", "node_reused": "done", "node_failed": "failed", "node_skipped": "skipped"}
_FIGURES = ("prefilled", "generated", "seconds")


@dataclass(frozen=True)
class StoredRun:
    """A run's folder at a glance.

    Attributes:
        items: how many the run is over; `finished` of them are through without an error.
        results: units whose results are stored.
        started: as written in its name, `YYYYMMDD-HHMMSS`.
    """

    folder: Path
    workflow: str
    state: State
    items: int
    finished: int
    results: int
    started: str


@dataclass
class NodeRows:
    """A node's units in a run, children folded: how many ended in which way, and what they cost."""

    states: Counter[str] = field(default_factory=Counter)
    prefilled: int = 0
    generated: int = 0
    seconds: float = 0.0
    because: str = ""


def find_run(ref: str, root: Path) -> Path:
    """The folder that a path, a run's name below `root`, or `last` means.

    Raises:
        RunError: there is none.
    """
    names = [folder.name for folder in run_folders(root)]
    if ref == LAST:
        if not names:
            raise RunError("There is no run yet.", where=str(root), fix="Name the folder of runs with --runs.")
        return root / names[-1]
    for folder in (Path(ref), root / ref):
        if (folder / "run.json").is_file():
            return folder
    raise RunError(f"There is no run '{ref}'.", where=str(root), fix=did_you_mean(ref, names[-5:]))


def run_folders(root: Path) -> list[Path]:
    """The folders of runs below `root`, the oldest first."""
    return sorted(path.parent for path in root.glob("*/run.json"))


def look(folder: Path) -> StoredRun:
    """How far a run came."""
    manifest, outcome = read_manifest(folder), read_outcome(folder)
    ends = outcome.get("items", {})
    if not ends:
        ends = {e["item"]: {"errors": e["data"]["failed"]} for e in _events(folder) if e["kind"] == "item_finished"}
    return StoredRun(
        folder=folder,
        workflow=str(manifest.get("workflow", "")),
        state="running" if is_running(folder) else outcome.get("state", "stopped"),
        items=len(manifest["items"]) if "items" in manifest else 1,
        finished=sum(not end["errors"] and end.get("outputs", True) != {} for end in ends.values()),
        results=len(read_results(folder)),
        started="-".join(folder.name.split("-")[:2]),
    )


def node_rows(folder: Path, item: str | None = None) -> dict[str, NodeRows]:
    """How far every node came, over all items or one; the latest process's word counts."""
    rows = {node: NodeRows() for node in read_manifest(folder).get("nodes", [])}
    for (node, _, _), event in _latest(folder, item).items():
        row = rows.setdefault(address(node), NodeRows())
        row.states[_ENDED.get(event["kind"], "unfinished")] += 1
        data = event["data"]
        row.because = row.because or str(data.get("error") or data.get("because") or "")
        for name in _FIGURES:
            setattr(row, name, getattr(row, name) + data.get(name, 0))
    return rows


def export(folder: Path) -> dict[str, Any]:
    """A run as one document: manifest, outputs and errors, and every stored result. No payloads, no tensors."""
    results = [record.to_json() for record in read_results(folder).values()]
    outcome = read_outcome(folder)
    return {"run": read_manifest(folder), "items": outcome.get("items", {}), "results": results}


def remove(folder: Path) -> None:
    """Delete a run.

    Raises:
        RunError: it is no run, or a process is at work on it.
    """
    read_manifest(folder)
    lock = locked(folder)
    try:
        shutil.rmtree(folder)
    finally:
        lock.release()


def read_outcome(folder: Path) -> dict[str, Any]:
    """How a run ended; empty where it has not."""
    try:
        found = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_running(folder: Path) -> bool:
    """Whether a process is at work on a run."""
    if not (folder / LOCK).exists():
        return False  # asking must not make a file
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


def _latest(folder: Path, item: str | None) -> dict[tuple[str, str, int | None], dict[str, Any]]:
    """The last event of every unit that has begun."""
    found: dict[tuple[str, str, int | None], dict[str, Any]] = {}
    for event in _events(folder):
        if (item is None or event["item"] == item) and (event["kind"] in _ENDED or event["kind"] == "node_started"):
            found[event["node"], event["item"], event["child"]] = event
            if event["child"] is not None:  # what was said of the whole node is over
                found.pop((event["node"], event["item"], None), None)
    return found


def _events(folder: Path) -> list[dict[str, Any]]:
    return read_events(folder) if (folder / "events.jsonl").is_file() else []
