from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import DataError
from agentflow.tasks.alfworld.gamefile import MAX_BYTES, read_game, read_task_type
from agentflow.tasks.alfworld.games import iter_games, list_games
from agentflow.tasks.alfworld.names import display_names
from tests.fake_world import GRAMMAR, game_file, write_game


def test_games_are_listed_by_split_with_id_and_type(tmp_path: Path) -> None:
    write_game(tmp_path, "valid_unseen/u/trial_1", task_type="look_at_obj_in_light")
    write_game(tmp_path, "valid_seen/s/trial_2")
    write_game(tmp_path, "valid_seen/s/trial_1")
    write_game(tmp_path, "valid_train/t/trial_1", walkthrough=None)
    write_game(tmp_path, "train/t/trial_1", walkthrough=None)
    found = [(game.id, game.split, game.task_type) for game in list_games(tmp_path)]
    assert found == [
        ("valid_seen/s/trial_1", "valid_seen", "pick_and_place_simple"),
        ("valid_seen/s/trial_2", "valid_seen", "pick_and_place_simple"),
        ("valid_unseen/u/trial_1", "valid_unseen", "look_at_obj_in_light"),
        ("train/t/trial_1", "train", "pick_and_place_simple"),
        ("valid_train/t/trial_1", "train", "pick_and_place_simple"),
    ]
    assert list_games(tmp_path / "json_2.1.1") == list_games(tmp_path)
    assert [game.split for game in list_games(tmp_path, splits=["valid_unseen"])] == ["valid_unseen"]
    assert [game.id for game in list_games(tmp_path, task_types=["look_at_obj_in_light"])] == ["valid_unseen/u/trial_1"]


def test_games_that_text_can_not_solve_are_left_out_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_game(tmp_path, "valid_seen/good/trial_1")
    write_game(tmp_path, "valid_seen/pick-AppleSliced/trial_1")
    write_game(tmp_path, "valid_seen/pick_and_place_with_movable_recep-X/trial_1")
    write_game(tmp_path, "valid_seen/unsolvable/trial_1", solvable=False)
    write_game(tmp_path, "valid_seen/unmarked/trial_1", solvable=None)
    with caplog.at_level(logging.INFO):
        assert [game.id for game in list_games(tmp_path)] == ["valid_seen/good/trial_1"]
    assert "left out 4 games" in caplog.text


def test_a_folder_without_games_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No games of valid_seen.*json_2\.1\.1/SPLIT/TASK/TRIAL/game\.tw-pddl"):
        list_games(tmp_path, splits=["valid_seen"])
    with pytest.raises(DataError, match="no such folder"):
        list_games(tmp_path / "nowhere")


def test_a_game_file_is_read_with_its_task_and_walkthrough(tmp_path: Path) -> None:
    contents = read_game(write_game(tmp_path, "valid_seen/a/b"))
    assert contents.goal == "put a book in sofa."
    assert contents.walkthrough == ("go to desk 1", "take book 1 from desk 1")
    assert contents.walkthrough_names == "display"
    assert contents.engine_data()["pddl_problem"] == "(define (problem p))"


def test_a_walkthrough_of_ids_is_told_by_its_coordinates(tmp_path: Path) -> None:
    file = write_game(tmp_path, "valid_unseen/a/b", walkthrough=["look", "go to desk_bar__minus_00_dot_57"])
    assert read_game(file).walkthrough_names == "ids"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pddl_domain": None}, "'pddl_domain' must be a text"),
        ({"pddl_problem": 3}, "'pddl_problem' must be a text"),
        ({"pddl_problem": " "}, "'pddl_problem' must be a text that is not empty"),
        ({"pddl_problem": "a\0b"}, "characters that are no text"),
        ({"pddl_problem": "a\ud800b"}, "characters that are no text"),
        ({"grammar": "grammar :: nothing"}, "states no task"),
        ({"grammar": [GRAMMAR]}, "'grammar' must be a text"),
        ({"solvable": "yes"}, "'solvable' must be true or false"),
        ({"walkthrough": "look"}, "must be a list of commands"),
        ({"walkthrough": ["look", 3]}, "must be a list of commands"),
        ({"walkthrough": ["look" * 200]}, "must be a list of commands"),
        ({"walkthrough": ["look"] * 1001}, "must be a list of commands"),
    ],
)
def test_a_wrong_game_file_is_named_with_its_fault(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = write_game(tmp_path, "valid_seen/a/b", **changes)
    with pytest.raises(DataError, match=message) as caught:
        read_game(file)
    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"null"]
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "game.tw-pddl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"not JSON|JSON object"):
        read_game(file)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "game.tw-pddl"
    with file.open("wb") as out:
        out.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match="larger than"):
        read_game(file)
    with pytest.raises(DataError, match="can't be read"):
        read_game(tmp_path / "nowhere")


def test_an_unknown_task_type_is_named(tmp_path: Path) -> None:
    write_game(tmp_path, "valid_seen/a/b", task_type="juggle")
    with pytest.raises(DataError, match="Unknown task type 'juggle'"):
        list(iter_games(tmp_path))


VALUES = st.none() | st.text() | st.integers() | st.booleans() | st.lists(st.text() | st.integers(), max_size=3)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from([*game_file(), "task_type"]), VALUES))
def test_any_json_object_is_a_game_or_a_data_error(values: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "game.tw-pddl"
        file.write_text(json.dumps({**game_file(), **values}))
        for read in (read_game, read_task_type):
            with suppress(DataError):
                read(file)


def test_things_are_numbered_from_the_last_id() -> None:
    ids = ["desk_bar__plus_01", "desk_bar__minus_00", "sink_bar__plus_01_bar_sinkbasin", "sink_bar__plus_01", "agent1"]
    assert display_names(ids) == {
        "agent1": "agent1",
        "desk_bar__minus_00": "desk 2",
        "desk_bar__plus_01": "desk 1",
        "sink_bar__plus_01": "sink 1",
        "sink_bar__plus_01_bar_sinkbasin": "sinkbasin 1",
    }


@settings(deadline=None)
@given(st.sets(st.tuples(st.sampled_from(["desk", "sink", "mug"]), st.integers(0, 99), st.booleans()), max_size=30))
def test_names_are_those_of_the_alfworld_package(things: set[tuple[str, int, bool]]) -> None:
    misc = pytest.importorskip("alfworld.agents.utils.misc", reason="needs the package alfworld", exc_type=ImportError)
    ids = [f"{kind}_bar__plus_{number:02d}_dot_00{'_bar_basin' if basin else ''}" for kind, number, basin in things]
    theirs = misc.Demangler(game_infos={key: _Info(key) for key in ids})
    assert display_names(ids) == {key: theirs.demangle_alfred_name(key).strip() for key in ids}


class _Info:
    def __init__(self, key: str) -> None:
        self.id = key
