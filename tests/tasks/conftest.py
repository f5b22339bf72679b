from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """Return the path of a real data file, or skip where the data isn't there."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs the data file {name}, kept beside the repository")
        return path

    return find


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write records (or any JSON value) as a JSON file and return its path."""

    def to_file(value: Any, name: str = "data.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    return to_file


@pytest.fixture
def hotpot() -> Callable[..., dict[str, Any]]:
    """Make a HotpotQA record of `n` paragraphs T0, T1, ...; those in `gold` are its supporting facts."""

    def make(key: str = "q1", n: int = 10, gold: tuple[int, ...] = (2, 7), **changes: Any) -> dict[str, Any]:
        record = {
            "_id": key,
            "question": f"Which is it, {key}?",
            "answer": "T2",
            "type": "bridge",
            "level": "hard",
            "supporting_facts": [[f"T{at}", 0] for at in gold],
            "context": [[f"T{at}", [f"First of {at}.", f" Second of {at}."]] for at in range(n)],
        }
        return {**record, **changes}

    return make
