from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.tasks.alfworld.actions import Match, closest, match_action, normalise
from agentflow.tasks.alfworld.episodes import Turn
from agentflow.tasks.alfworld.prompt import Opening, react_prompt, split_opening

ADMISSIBLE = (
    "examine mug 1",
    "go to cabinet 1",
    "go to cabinet 10",
    "go to desk 1",
    "heat mug 1 with microwave 1",
    "inventory",
    "look",
    "move mug 1 to desk 1",
    "open microwave 1",
    "take mug 1 from desk 1",
    "use desklamp 1",
)


@pytest.mark.parametrize(
    ("answer", "command", "how"),
    [
        ("go to desk 1", "go to desk 1", "exact"),
        ("> go to desk 1", "go to desk 1", "exact"),
        ("Action: go to desk 1\nObservation: On the desk 1, you see nothing.", "go to desk 1", "exact"),
        ("think: I need a mug.\nlook", "look", "exact"),
        ("Thought: go to cabinet 1 is wise.\nAction: go to desk 1", "go to desk 1", "exact"),
        ("I need to look around.\nAction 2: inventory", "inventory", "exact"),
        ('"Go to desk 1."', "go to desk 1", "normalised"),
        ("**go to  the Desk 1**", "go to desk 1", "normalised"),
        ("go to desk1", "go to desk 1", "normalised"),
        ("Open the microwave #1", "open microwave 1", "normalised"),
        ("put mug 1 in/on desk 1", "move mug 1 to desk 1", "normalised"),
        ("place the mug 1 on the desk 1", "move mug 1 to desk 1", "normalised"),
        ("pick up mug 1 from desk 1", "take mug 1 from desk 1", "normalised"),
        ("turn on desklamp 1", "use desklamp 1", "normalised"),
        ("go to desk 1 to look for a pen", "go to desk 1", "prefix"),
        ("go to cabinet 10, then open it", "go to cabinet 10", "prefix"),
        ("go to desk", "go to desk 1", "prefix"),
        ("heat mug 1", "heat mug 1 with microwave 1", "prefix"),
        ("take", "take mug 1 from desk 1", "prefix"),
    ],
)
def test_an_answer_is_matched_to_a_command(answer: str, command: str, how: str) -> None:
    assert match_action(answer, ADMISSIBLE) == Match(command, how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  \n",
        "think: look",
        "go to",
        "go to cabinet",
        "go to desk 2",
        "dance",
        "go to desk 11",
        "Action:",
        "lookout",
        "...",
    ],
)
def test_an_answer_that_names_no_command_or_several_matches_none(answer: str) -> None:
    assert match_action(answer, ADMISSIBLE) is None


def test_no_command_is_matched_where_none_is_admissible() -> None:
    assert match_action("look", ()) is None
    assert closest("look", ()) is None


@given(
    st.sampled_from(ADMISSIBLE), st.sampled_from([str.upper, str.title, "  {}.".format, "> {}!".format, "`{}`".format])
)
def test_every_command_is_found_in_any_dress(command: str, dress: object) -> None:
    found = match_action(dress(command), ADMISSIBLE)  # type: ignore[operator]
    assert found is not None
    assert found.command == command


@given(st.text(max_size=80))
def test_any_text_matches_a_command_or_none(answer: str) -> None:
    found = match_action(answer, ADMISSIBLE)
    assert found is None or found.command in ADMISSIBLE
    assert closest(answer, ADMISSIBLE) in (None, *ADMISSIBLE)


def test_normal_forms_of_different_commands_differ() -> None:
    assert len({normalise(command) for command in ADMISSIBLE}) == len(ADMISSIBLE)


def test_the_closest_command_shares_most_words() -> None:
    assert closest("I would open that microwave 1 now", ADMISSIBLE) == "open microwave 1"
    assert closest("dance", ADMISSIBLE) is None


def test_the_opening_is_the_room_and_the_task() -> None:
    text = "You are in a room. You see a desk 1.\n\nYour task is to: put a mug in desk."
    assert split_opening(text) == Opening("You are in a room. You see a desk 1.", "put a mug in desk.")
    assert split_opening("A room.") == Opening("A room.", "")


def test_the_prompt_tells_the_story_and_ends_where_the_action_goes() -> None:
    turns = [Turn("look", "You see a mug 1."), Turn("take mug 1 from desk 1", "You pick up the mug 1.")]
    text = react_prompt(Opening("A room.", "heat a mug."), turns, admissible=["look", "inventory"], plan="Find a mug.")
    assert text == (
        "Interact with a household to solve a task. Answer with the next action only.\n\nA room.\n\n"
        "Your task is to: heat a mug.\n\nPlan:\nFind a mug.\n\n"
        "> look\nYou see a mug 1.\n\n> take mug 1 from desk 1\nYou pick up the mug 1.\n\n"
        "Possible actions:\nlook\ninventory\n\n> "
    )


def test_the_prompt_grows_at_its_end_only() -> None:
    turns = [Turn(f"go to desk {number}", "Nothing.") for number in range(4)]
    opening = Opening("A room.", "win.")
    texts = [react_prompt(opening, turns[:count]) for count in range(5)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_a_prompt_of_the_last_turns_says_what_it_leaves_out() -> None:
    turns = [Turn(f"c{number}", f"o{number}") for number in range(5)]
    text = react_prompt(Opening("A room.", ""), turns, last=2)
    assert "(3 earlier actions are not shown.)" in text
    assert "c2" not in text
    assert "> c3\no3\n\n> c4\no4\n\n> " in text
    assert "c4" not in react_prompt(Opening("A room.", ""), turns, last=0)
