from __future__ import annotations

import pickle

import pytest

from agentflow.errors import UserError, WorkflowError
from agentflow.workflow import Location, Problem, WorkflowProblemsError, raise_problems
from agentflow.workflow.problems import described, quoted

LINE = "  - {from: read, to: answer, channel: {name: latent_brifing, t: 1.0}}"


def problem(line: int = 19, column: int = 46, length: int = 14, text: str = LINE) -> Problem:
    place = Location("workflows/hotpotqa.yaml", line, column, length, text)
    path = ("edges", 0, "channel", "name")
    return Problem(place, path, "unknown channel 'latent_brifing'", "Did you mean 'latent_briefing'?")


def test_a_problem_shows_place_key_fault_fix_line_and_caret() -> None:
    assert str(problem()) == (
        "workflows/hotpotqa.yaml:19:46 – edges[0].channel.name: unknown channel 'latent_brifing'. "
        "Did you mean 'latent_briefing'?\n"
        f"19 | {LINE}\n"
        "   |                                              ^^^^^^^^^^^^^^"
    )


def test_problems_are_sorted_by_place_and_told_once() -> None:
    with pytest.raises(WorkflowProblemsError) as caught:
        raise_problems([problem(3), problem(1, 9), problem(1, 2), problem(3)])
    assert [(p.location.line, p.location.column) for p in caught.value.problems] == [(1, 2), (1, 9), (3, 46)]
    assert isinstance(caught.value, WorkflowError)
    assert isinstance(caught.value, UserError)


def test_at_most_twenty_problems_are_printed() -> None:
    error = WorkflowProblemsError([problem(n) for n in range(1, 31)])
    assert str(error).count("unknown channel") == 20
    assert str(error).endswith("… and 10 more")
    assert len(error.problems) == 30


def test_raising_no_problem_is_a_bug() -> None:
    with pytest.raises(ValueError, match="needs a problem"):
        raise_problems([])


def test_the_error_survives_pickling() -> None:
    error = WorkflowProblemsError([problem()])
    twin = pickle.loads(pickle.dumps(error))
    assert str(twin) == str(error)
    assert twin.problems == error.problems


def test_a_long_line_is_cut_around_the_place() -> None:
    text = "x" * 5000 + " HERE " + "y" * 5000
    shown = Location("f", 1, 5002, 4, text).snippet().splitlines()
    assert len(shown[0]) < 120
    assert shown[0][shown[1].index("^") :].startswith("HERE")


def test_wide_characters_and_tabs_keep_the_caret_below_the_place() -> None:
    wide = Location("f", 1, 4, 1, "中文: x").snippet().splitlines()[1]
    assert wide == "  |" + " " * 6 + "^"
    assert Location("f", 1, 3, 1, "\tab").snippet().splitlines()[1] == "  | \t ^"


def test_foreign_text_is_quoted_without_control_characters_and_cut() -> None:
    assert quoted("\x1b[31mred\n") == "'\\x1b[31mred\\n'"
    assert len(quoted("x" * 1000)) == 62


def test_values_are_described_in_words() -> None:
    values = [None, True, 3, 1.5, "a", "", [], [1], {}, {"a": 1}]
    assert [described(value) for value in values] == [
        "nothing",
        "true",
        "the number 3",
        "the number 1.5",
        "the text 'a'",
        "an empty text",
        "an empty list",
        "a list",
        "an empty mapping",
        "a mapping",
    ]
