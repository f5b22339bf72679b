"""Every file of the corpus is refused: each problem at its place and in its words, soon, and with nothing run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentflow.workflow import WorkflowProblemsError, load_workflow

from .corpus import BROKEN, FILES, MADE, expected

LONGEST_SECONDS = 20.0  # of this process: others may be at work on the machine


def problems(path: Path) -> list[tuple[str, str]]:
    """The place and the first line of every problem in a file."""
    begin = time.process_time()
    with pytest.raises(WorkflowProblemsError) as caught:
        load_workflow(path)
    assert time.process_time() - begin < LONGEST_SECONDS
    assert all(problem.location.file == str(path) for problem in caught.value.problems)
    return [
        (f"{problem.location.line}:{problem.location.column}", str(problem).splitlines()[0])
        for problem in caught.value.problems
    ]


def compare(found: list[tuple[str, str]], told: list[tuple[str, str]]) -> None:
    for (place, message), (where, words) in zip(found, told, strict=False):
        assert place == where, message
        assert words in message


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("bind/")])
def test_a_broken_file_gives_the_problems_that_it_promises(name: str) -> None:
    told = expected((BROKEN / name).read_text(encoding="utf-8"))
    found = problems(BROKEN / name)
    compare(found, told)
    assert len(found) == len(told), found


@pytest.mark.parametrize("name", MADE)
def test_a_file_that_is_large_or_no_text_is_refused_soon(name: str, tmp_path: Path) -> None:
    make, told = MADE[name]
    path = tmp_path / "made.yaml"
    path.write_bytes(make())
    compare(problems(path), told)


def test_the_corpus_is_large_and_every_file_in_it_promises_something() -> None:
    assert len(FILES) + len(MADE) > 150
    for name in FILES:
        assert expected((BROKEN / name).read_text(encoding="utf-8")), name
