"""The corpus of broken workflows through the command itself: exit code 2, one message a problem, and nothing done."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, files_below
from tests.workflow.corpus import BROKEN, FILES, MADE, expected

LONGEST_SECONDS = 20.0  # of this process: others may be at work on the machine
# What no check of a file may do, by the names of Python's audit events.
DEEDS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)
_seen: list[str] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _seen is None:
        return
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if event in DEEDS or writes:
        _seen.append(f"{event} {arguments}")


sys.addaudithook(_watch)  # can't be taken off again, so it is quiet unless a test listens


@pytest.fixture
def deeds() -> Iterator[list[str]]:
    """What is started, connected to, unpickled or written while the test runs."""
    global _seen  # noqa: PLW0603 (the hook is global)
    _seen = []
    yield _seen
    _seen = None


@pytest.fixture
def corpus(place: Path) -> Path:
    shutil.copytree(BROKEN, place / "broken")
    return place


@pytest.mark.parametrize("name", FILES)
def test_validate_tells_every_problem_of_a_broken_file(name, corpus, cli: Cli, deeds: list[str]) -> None:
    file = f"broken/{name}"
    before = files_below(corpus)
    begin = time.process_time()
    told = cli("validate", file)
    assert time.process_time() - begin < LONGEST_SECONDS
    machine = cli("validate", file, "--json")
    assert told.code == machine.code == 2
    assert told.out == machine.err == ""
    assert told.err.startswith("error: ")
    assert "Traceback" not in told.err
    (found,) = machine.json
    promised = expected((corpus / file).read_text(encoding="utf-8"))
    assert [problem["where"] for problem in found["problems"]] == [f"{file}:{place}" for place, _ in promised]
    for place, words in promised[:20]:
        assert any(line.removeprefix("error: ").startswith(f"{file}:{place} – ") for line in told.err.splitlines())
        assert words in told.err
    assert files_below(corpus) == before
    assert deeds == []


@pytest.mark.parametrize("name", MADE)
def test_validate_refuses_what_is_large_or_no_text(name, corpus, cli: Cli, deeds: list[str]) -> None:
    make, ((where, words), *_) = MADE[name]
    (corpus / "made.yaml").write_bytes(make())
    deeds.clear()  # the file itself was written
    begin = time.process_time()
    told = cli("validate", "made.yaml")
    assert time.process_time() - begin < LONGEST_SECONDS
    assert told.code == 2
    assert told.out == ""
    assert told.err.startswith(f"error: made.yaml:{where} – ")
    assert words in told.err
    assert "Traceback" not in told.err
    assert len(told.err) < 20_000
    assert deeds == []


def test_the_watch_sees_what_it_looks_for(deeds: list[str], tmp_path: Path) -> None:
    (tmp_path / "written").write_text("x")
    assert len(deeds) == 1
