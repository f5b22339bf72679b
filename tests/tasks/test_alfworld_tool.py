"""The tool `alfworld` is a function of its arguments; behind it, games are kept where they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agentflow.tasks.alfworld import EnvironmentPool, GameError, PoolSettings
from agentflow.tasks.alfworld.tool import AlfWorldTool
from tests.fake_world import COMMANDS, open_fake


@pytest.fixture
def tool():
    made = AlfWorldTool(EnvironmentPool(PoolSettings(processes=2), opener=open_fake))
    yield made
    made.close()


@pytest.fixture
def stepped(monkeypatch):
    """Commands that were really sent to a game."""
    from agentflow.tasks.alfworld.process import WorkerProcess

    sent, step = [], WorkerProcess.step

    def counted(self, command, seconds):
        sent.append(command)
        return step(self, command, seconds)

    monkeypatch.setattr(WorkerProcess, "step", counted)
    return sent


def test_at_the_beginning_the_room_is_seen_and_the_task_is_not(tool):
    seen = tool("game", [])
    assert seen == {
        "text": "A room of game in display names.",
        "admissible": list(COMMANDS),
        "command": "",
        "steps": 0,
        "done": False,
        "won": False,
    }


def test_answers_become_commands_and_winning_ends_the_game(tool):
    seen = tool("game", ["Action: Go to the desk 1.", "win", "look"])
    assert (seen["text"], seen["command"], seen["steps"]) == ("You won.", "win", 2)
    assert (seen["done"], seen["won"]) == (True, True)


def test_an_answer_that_names_no_command_is_said_to_the_game_as_it_is(tool):
    assert tool("game", ["Thought: hm.\nfly away."])["command"] == "fly away"
    assert tool("game", [""])["command"] == "look"


def test_going_on_costs_one_step(tool, stepped):
    tool("game", ["look", "go to desk 1"])
    tool("game", ["look", "go to desk 1", "look"])
    assert stepped == ["look", "go to desk 1", "look"]
    assert tool("game", ["look", "go to desk 1", "look"])["text"] == "You look."
    assert len(stepped) == 3


def test_another_history_is_played_from_the_beginning(tool, stepped):
    tool("game", ["look", "go to desk 1"])
    seen = tool("game", ["go to desk 10"])
    assert (seen["text"], seen["steps"]) == ("You go to desk 10.", 1)
    assert stepped == ["look", "go to desk 1", "go to desk 10"]


def test_more_games_than_processes_are_played_all_the_same(tool):
    names = [f"game{number}" for number in range(5)]
    history: dict[str, list[str]] = {name: [] for name in names}
    for command in ("look", "go to desk 1"):
        for name in names:
            history[name].append(command)
            assert tool(name, history[name])["steps"] == len(history[name])


def test_threads_may_ask_together(tool):
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda n: tool(f"game{n % 3}", ["look"] * (n % 4 + 1))["steps"], range(12)))
    assert found == [n % 4 + 1 for n in range(12)]


def test_a_game_that_breaks_is_an_error_and_can_be_asked_for_again(tool):
    tool("game", ["look"])
    with pytest.raises(GameError, match="killed"):
        tool("game", ["look", "kill"])
    assert tool("game", ["look", "look"])["steps"] == 2
    with pytest.raises(GameError, match="no such game"):
        tool("broken", [])
    assert [tool(name, ["win"])["won"] for name in ("one", "two", "three")] == [True] * 3


def test_the_last_allowed_command_ends_a_game(tool):
    assert tool("game", ["look", "look", "look"], max_steps=2)["steps"] == 2
    assert tool("game", ["look", "look"], max_steps=2)["done"] is True


def test_what_is_closed_plays_no_more(tool):
    tool("game", [])
    tool.close()
    with pytest.raises(GameError, match="closed"):
        tool("game", [])
