"""Games on the real engine: one of ours, small enough to be read, and the official ones where they lie."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import DataError
from agentflow.tasks.alfworld.archive import games_folder
from agentflow.tasks.alfworld.episodes import Play, play_all, replay, walkthrough_of
from agentflow.tasks.alfworld.expressions import evaluate
from agentflow.tasks.alfworld.games import Game, Split, iter_games
from agentflow.tasks.alfworld.pool import EnvironmentPool, PoolSettings
from agentflow.tasks.alfworld.prompt import split_opening
from agentflow.tasks.alfworld.state import GameError
from agentflow.tasks.alfworld.tool import AlfWorldTool
from tests.fake_world import game_file, write_game

ARCHIVE = "alfworld/alfworld_seen140_train200_unseen30.tar.xz"

needs_engine = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("fast_downward") is None, reason="needs the extra agentflow-kv[alfworld]"),
]

DOMAIN = """
(define (domain tiny)
 (:requirements :adl :action-costs :typing)
 (:types agent place object)
 (:predicates (spot ?p - place) (at ?a - agent ?p - place) (on ?o - object ?p - place) (holds ?a - agent ?o - object))
 (:functions (total-cost) - number)
 (:action Walk
    :parameters (?a - agent ?s - place ?p - place)
    :precondition (and (at ?a ?s) (not (at ?a ?p)))
    :effect (and (not (at ?a ?s)) (at ?a ?p) (increase (total-cost) 1)))
 (:action Take
    :parameters (?a - agent ?o - object ?p - place)
    :precondition (and (at ?a ?p) (on ?o ?p))
    :effect (and (not (on ?o ?p)) (holds ?a ?o) (increase (total-cost) 1)))
)
"""
PROBLEM = """
(define (problem p) (:domain tiny)
 (:objects agent1 - agent
    desk_bar__plus_01 - place  desk_bar__plus_02 - place  door_bar__plus_00 - place  pen_bar__plus_03 - object)
 (:init (spot desk_bar__plus_01) (spot desk_bar__plus_02) (spot door_bar__plus_00)
    (at agent1 door_bar__plus_00) (on pen_bar__plus_03 desk_bar__plus_02) (= (total-cost) 0))
 (:goal (holds agent1 pen_bar__plus_03))
 (:metric minimize (total-cost)))
"""
TAKE_IDS = ["go to desk_bar__plus_02", "take pen_bar__plus_03 from desk_bar__plus_02"]


def grammar(walk: str = "You arrive at {p.name}.") -> str:
    rules = {
        "intro": [{"rhs": "-= Welcome to TextWorld, ALFRED! =-\n\nA room with a door.\n\n#task#"}],
        "task": [{"rhs": "Your task is to: hold the pen."}],
        "walk": [{"rhs": walk}],
        "take": [{"rhs": "You hold {o.indefinite + ' ' + o.name}."}],
    }
    text = json.dumps(rules, indent=1)
    actions = 'action Walk { template :: "go to {p}"; feedback :: "#walk#"; }\n'
    actions += 'action Take { template :: "take {o} from {p}"; feedback :: "#take#"; }\n'
    return f'grammar :: """\n{text}\n""";\n\n{actions}'


def tiny(folder: Path, **changes: Any) -> Path:
    values = game_file(pddl_domain=DOMAIN, pddl_problem=PROBLEM, grammar=grammar(), walkthrough=TAKE_IDS)
    file = folder / "game.tw-pddl"
    file.write_text(json.dumps({**values, **changes}))
    return file


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvironmentPool]:
    if find_spec("fast_downward") is None:
        pytest.skip("needs the extra agentflow-kv[alfworld]")
    with EnvironmentPool(PoolSettings(processes=1, games_per_process=4)) as made:
        yield made


@pytest.fixture(scope="module")
def official(real: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official games, unpacked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTFLOW_CACHE", str(tmp_path_factory.mktemp("cache")))
        return games_folder(real(ARCHIVE))


class TestEngine:
    pytestmark = needs_engine

    def test_a_game_is_played_in_display_names(self, pool: EnvironmentPool, tmp_path: Path) -> None:
        with pool.episode(tiny(tmp_path)) as episode:
            opening = episode.reset()
            assert split_opening(opening.observation).room == "A room with a door."
            assert split_opening(opening.observation).task == "hold the pen."
            assert opening.admissible == ("go to desk 1", "go to desk 2")
            assert episode.step("fly").observation == "Nothing happens."
            seen = episode.step("go to desk 1")
            assert seen.observation == "You arrive at desk 1."
            assert (seen.done, seen.won) == (False, False)
            last = episode.step("take pen 1 from desk 1")
            assert last.observation == "You hold a pen 1."
            assert (last.done, last.won, episode.steps) == (True, True, 3)

    def test_the_tool_plays_it_one_action_more_each_time(self, tmp_path: Path) -> None:
        tool, file = AlfWorldTool(EnvironmentPool(PoolSettings(processes=1))), str(tiny(tmp_path))
        actions: list[str] = []
        try:
            seen = tool(file, actions)
            assert (seen["text"], seen["admissible"]) == ("A room with a door.", ["go to desk 1", "go to desk 2"])
            for action, text in (("Action: go to the desk 1", "You arrive at desk 1."), ("get pen 1 from desk 1", "")):
                actions.append(action)
                seen = tool(file, actions)
                assert text in seen["text"]
            assert (seen["command"], seen["won"], seen["steps"]) == ("take pen 1 from desk 1", True, 2)
            assert tool(file, ["go to desk 2"])["text"] == "You arrive at desk 2."
        finally:
            tool.close()

    def test_a_game_is_played_in_ids_and_begun_again(self, pool: EnvironmentPool, tmp_path: Path) -> None:
        with pool.episode(tiny(tmp_path), names="ids") as episode:
            for _ in range(2):
                assert episode.reset().admissible == ("go to desk_bar__plus_01", "go to desk_bar__plus_02")
                assert [episode.step(command).won for command in TAKE_IDS] == [False, True]

    def test_the_example_of_the_documents_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        page = Path(__file__).parents[2] / "docs" / "alfworld.md"
        [example] = re.findall(r"^```py\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        file = write_game(tmp_path / "games", "valid_seen/a/b")
        tiny(file.parent)
        monkeypatch.chdir(tmp_path)
        exec(compile(example, "example", "exec"), {"__name__": "__main__"})
        assert capsys.readouterr().out == "pick_and_place_simple not won in 5 steps\n"

    @pytest.mark.parametrize("code", ["open('{}', 'w').close()", "p.__class__", "().__class__", "p.name.upper()"])
    def test_python_in_a_game_file_is_not_run(self, pool: EnvironmentPool, tmp_path: Path, code: str) -> None:
        trace = tmp_path / "trace"
        walk = "{" + code.replace("{}", str(trace)) + "}"
        file = tiny(tmp_path, grammar=grammar(walk))
        with pool.episode(file) as episode:
            episode.reset()
            with pytest.raises(GameError, match="an expression that is not run"):
                episode.step("go to desk 1")
        assert not trace.exists()

    @pytest.mark.parametrize("changes", [{"pddl_problem": "(define"}, {"pddl_domain": "nonsense"}])
    def test_a_game_that_the_planner_can_not_read_fails_and_the_next_is_played(
        self, pool: EnvironmentPool, tmp_path: Path, changes: dict[str, str]
    ) -> None:
        (tmp_path / "bad").mkdir()
        bad = Game("bad", "train", "hold", tiny(tmp_path / "bad", **changes))
        good = Game("good", "train", "hold", tiny(tmp_path))
        first, second = play_all(pool, [Play(game, replay(TAKE_IDS), "ids") for game in (bad, good)])
        assert first.failure
        assert second.won, second.failure

    @pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
    def test_official_games_are_won_by_their_walkthroughs(
        self, pool: EnvironmentPool, official: Path, split: Split
    ) -> None:
        found = list(iter_games(official, splits=(split,)))
        plans = [walkthrough_of(game, contents) for game, contents in found[:: len(found) // 2][:2]]
        assert {plan.names for plan in plans} == {"display" if split == "valid_seen" else "ids"}
        results = play_all(pool, plans)
        assert [(result.won, result.failure) for result in results] == [(True, "")] * 2


def test_all_official_games_are_listed(official: Path) -> None:
    found = list(iter_games(official))
    counts = {split: sum(game.split == split for game, _ in found) for split in ("valid_seen", "valid_unseen", "train")}
    assert counts == {"valid_seen": 140, "valid_unseen": 30, "train": 200}
    assert len({game.id for game, _ in found}) == 370
    assert len({game.task_type for game, _ in found}) == 6


class Thing:
    name, id, indefinite, definite = "pen 1", "pen_bar", "a", "the"
    secret = "no"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("o.name", "pen 1"),
        (" o.indefinite + ' ' + o.name ", "a pen 1"),
        ("empty or o.id", "pen_bar"),
        ("o.name or o.id", "pen 1"),
        ("'text'", "text"),
    ],
)
def test_a_grammars_expressions_are_names_and_texts(expression: str, value: str) -> None:
    assert evaluate(expression, {"o": Thing(), "empty": ""}) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("__import__('os')", "(lambda: 1)()", "f'{o}'", "[o]", "o.name if o else x", "o.secret", "o.name.upper()"),
        *("", "1", "x", "o.name +", "o.name * 9", "'a' + o", "a" * 201, "(" * 90 + ")" * 90),
    ],
)
def test_any_other_expression_is_refused(expression: str) -> None:
    with pytest.raises(DataError, match="an expression that is not run"):
        evaluate(expression, {"o": Thing()})
