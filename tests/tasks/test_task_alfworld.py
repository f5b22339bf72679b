from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentflow.errors import DataError, UserError
from agentflow.tasks import get_task, make_task
from agentflow.tasks.alfworld.episodes import EpisodeResult, walkthrough_of
from agentflow.tasks.alfworld.games import iter_games
from agentflow.tasks.alfworld.summary import tallies
from agentflow.tasks.alfworld.task import AlfWorld, AlfWorldSettings
from agentflow.tasks.interactive import Outcome
from tests.fake_world import write_game


@pytest.fixture
def games(tmp_path: Path) -> Path:
    for number in range(6):
        kind = "pick_and_place_simple" if number < 4 else "look_at_obj_in_light"
        write_game(tmp_path, f"valid_seen/task-{number}/trial_1", task_type=kind)
    write_game(tmp_path, "valid_unseen/task-9/trial_1")
    return tmp_path


def test_the_task_is_found_by_name() -> None:
    assert get_task("alfworld") is AlfWorld
    assert AlfWorld.interactive
    assert not get_task("hotpotqa").interactive


def test_an_item_is_a_game_with_its_task_in_words(games: Path) -> None:
    items = AlfWorld(AlfWorldSettings(shuffle=False)).items(data=games, limit=None, seed=0)
    assert [item.id for item in items] == [f"valid_seen/task-{number}/trial_1" for number in range(6)]
    first = items[0]
    assert first.group == "pick_and_place_simple"
    assert first.inputs["task"] == "put a book in sofa."
    assert Path(first.inputs["game"]).is_file()
    assert first.meta == {"split": "valid_seen", "walkthrough_steps": 2}
    json.dumps(first.inputs)


def test_games_come_in_a_seeded_order_and_the_limit_takes_the_first(games: Path) -> None:
    task = AlfWorld()
    whole = task.items(data=games, limit=None, seed=1)
    assert task.items(data=games, limit=3, seed=1) == whole[:3]
    assert {item.id for item in task.items(data=games, limit=None, seed=2)} == {item.id for item in whole}
    orders = {tuple(item.id for item in task.items(data=games, limit=None, seed=seed)) for seed in range(5)}
    assert len(orders) > 1


def test_split_and_type_choose_games(games: Path) -> None:
    unseen = make_task("alfworld", {"split": "valid_unseen"})
    assert [item.id for item in unseen.items(data=games, limit=None, seed=0)] == ["valid_unseen/task-9/trial_1"]
    lamps = make_task("alfworld", {"task_type": "look_at_obj_in_light"})
    assert len(lamps.items(data=games, limit=None, seed=0)) == 2
    heat = make_task("alfworld", {"task_type": "pick_heat_then_place_in_recep"})
    with pytest.raises(DataError, match="No games of pick_heat"):
        heat.items(data=games, limit=None, seed=0)
    with pytest.raises(UserError, match="'valid_seen', 'valid_unseen' or 'train', not 'seen'"):
        make_task("alfworld", {"split": "seen"})


def test_an_episode_is_scored_by_winning_and_steps(games: Path) -> None:
    task = AlfWorld(AlfWorldSettings(max_steps=20))
    item = task.items(data=games, limit=1, seed=0)[0]
    assert task.score(item, [Outcome(won=True, steps=5).to_text()]) == {"success": 1.0, "spared": 0.75}
    assert task.score(item, [Outcome(won=False, steps=5).to_text()]) == {"success": 0.0, "spared": 0.0}
    assert task.score_outcome(item, Outcome(won=True, steps=30)) == {"success": 1.0, "spared": 0.0}


BAD_STEPS = ('{"won": true, "steps": -1}', '{"won": true, "steps": true}', '{"won": true, "steps": 1.5}')


@pytest.mark.parametrize("text", ["", "won", "{}", "[]", '{"won": 1, "steps": 2}', *BAD_STEPS])
def test_a_text_that_is_no_outcome_is_refused(games: Path, text: str) -> None:
    task = AlfWorld()
    item = task.items(data=games, limit=1, seed=0)[0]
    with pytest.raises(ValueError, match=r"not an episode's outcome"):
        task.score(item, [text])


def test_listing_and_scoring_need_no_engine(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.tasks.alfworld.engine.find_spec", lambda name: None)
    task = AlfWorld()
    assert task.items(data=games, limit=None, seed=0)
    with pytest.raises(UserError, match="pip install 'agentflow-kv"):
        task.environments()


def test_figures_are_given_by_task_type_and_for_all() -> None:
    results = [
        EpisodeResult("a", "heat", won=True, steps=4, seconds=1.0),
        EpisodeResult("b", "heat", won=False, steps=10, seconds=1.0),
        EpisodeResult("c", "cool", won=False, steps=1, seconds=1.0, failure="the engine broke"),
    ]
    cool, heat, whole = tallies(results)
    assert (cool.task_type, cool.games, cool.won, cool.failed, cool.steps) == ("cool", 1, 0, 1, None)
    assert (heat.success, heat.steps, heat.steps_when_won) == (0.5, 7.0, 4.0)
    assert (whole.task_type, whole.games, whole.won, whole.failed, whole.seconds) == ("all", 3, 1, 1, 3.0)
    assert tallies([])[0].success == 0.0


def test_a_game_without_a_walkthrough_can_not_be_replayed(tmp_path: Path) -> None:
    write_game(tmp_path, "train/a/b", walkthrough=None)
    [(game, contents)] = iter_games(tmp_path)
    with pytest.raises(DataError, match="train/a/b: The game has no walkthrough"):
        walkthrough_of(game, contents)
