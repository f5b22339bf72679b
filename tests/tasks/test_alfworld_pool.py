from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentflow.errors import UserError
from agentflow.tasks.alfworld import engine
from agentflow.tasks.alfworld.engine import require_engine
from agentflow.tasks.alfworld.episodes import Play, play_all, replay
from agentflow.tasks.alfworld.games import Game
from agentflow.tasks.alfworld.pool import EnvironmentPool, PoolSettings
from agentflow.tasks.alfworld.state import GameError
from tests.fake_world import COMMANDS, open_fake

ROOT = Path(__file__).resolve().parents[2]


def pool_of(processes: int = 1, games: int = 100, seconds: float = 30.0) -> EnvironmentPool:
    return EnvironmentPool(PoolSettings(processes, games, open_seconds=60, step_seconds=seconds), opener=open_fake)


@pytest.fixture
def pool() -> Iterator[EnvironmentPool]:
    with pool_of() as made:
        yield made
    assert children() == []


def children() -> list[psutil.Process]:
    """Our worker processes; the resource tracker of `multiprocessing` stays for good and is none of them."""
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def plan(name: str, *commands: str, kind: str = "find") -> Play:
    return Play(Game(name, "valid_seen", kind, Path(name)), replay(commands))


def pid(pool: EnvironmentPool) -> int:
    with pool.episode(Path("a")) as episode:
        episode.reset()
        return int(episode.step("pid").observation)


def test_a_game_is_played_to_its_end(pool: EnvironmentPool) -> None:
    with pool.episode(Path("house"), names="ids") as episode:
        opening = episode.reset()
        assert opening.observation.startswith("A room of house in ids names.")
        assert opening.admissible == COMMANDS
        assert not opening.done
        assert episode.step("look").observation == "You look."
        last = episode.step("win")
        assert (last.done, last.won, episode.steps) == (True, True, 2)
        with pytest.raises(ValueError, match="this game is over"):
            episode.step("look")


def test_a_game_ends_at_its_last_allowed_step_and_can_begin_again(pool: EnvironmentPool) -> None:
    with pool.episode(Path("a"), max_steps=2) as episode:
        with pytest.raises(ValueError, match="has not begun"):
            episode.step("look")
        episode.reset()
        assert not episode.step("look").done
        last = episode.step("look")
        assert (last.done, last.won) == (True, False)
        episode.reset()
        assert episode.steps == 0
        assert not episode.step("look").done


def test_a_process_is_kept_for_some_games_and_then_replaced() -> None:
    with pool_of(games=2) as pool:
        pids = [pid(pool) for _ in range(5)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
        assert not psutil.pid_exists(pids[0])
    assert children() == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit", "ended with code 7: the command 'exit'"),
        ("kill", "was killed by SIGKILL"),
        ("raise", "RuntimeError: the planner is confused"),
    ],
)
def test_a_game_that_dies_fails_with_the_reason_and_the_next_one_is_played(
    pool: EnvironmentPool, command: str, reason: str
) -> None:
    before = pid(pool)
    bad, good = play_all(pool, [plan("bad", "look", command), plan("good", "look", "win")])
    assert (bad.won, bad.steps) == (False, 1)
    assert reason in bad.failure
    assert (good.won, good.steps, good.failure) == (True, 2, "")
    assert pid(pool) != before


@pytest.mark.parametrize("command", ["sleep", "spin"])
def test_a_game_that_hangs_is_ended_in_time(command: str) -> None:
    with pool_of(seconds=0.5) as pool:
        start = time.perf_counter()
        bad, good = play_all(pool, [plan("bad", command), plan("good", "win")])
        assert f"No answer within 0.5 seconds: the command '{command}'" in bad.failure
        assert good.won
        assert time.perf_counter() - start < 30
    assert children() == []


@pytest.mark.parametrize(
    ("name", "reason"), [("broken", "OSError: no such game"), ("deadly", "ended with code 3: opening")]
)
def test_a_game_that_can_not_be_opened_fails_with_the_reason(pool: EnvironmentPool, name: str, reason: str) -> None:
    bad, good = play_all(pool, [plan(name, "win"), plan("good", "win")])
    assert reason in bad.failure
    assert good.won


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold to this limit")
def test_a_game_that_wants_too_much_memory_fails() -> None:
    settings = PoolSettings(processes=1, memory_bytes=1024**3)
    with EnvironmentPool(settings, opener=open_fake) as pool:
        bad, good = play_all(pool, [plan("bad", "hog"), plan("good", "win")])
    assert "MemoryError" in bad.failure
    assert good.won


def test_results_come_in_the_order_of_the_plans_and_are_told_as_they_come() -> None:
    plans = [plan(f"g{number}", "look", "win" if number % 2 else "look") for number in range(8)]
    told: list[str] = []
    with pool_of(processes=2) as pool:
        results = play_all(pool, plans, told=lambda result: told.append(result.game))
        assert len(children()) == 2
    assert [result.game for result in results] == [f"g{number}" for number in range(8)]
    assert sorted(told) == [f"g{number}" for number in range(8)]
    assert [result.won for result in results] == [False, True] * 4
    assert [turn.command for turn in results[1].turns] == ["look", "win"]


def test_what_a_policy_raises_stops_all_games_and_leaves_no_process() -> None:
    def confused(*_: object) -> str:
        raise LookupError("the model is gone")

    plans = [plan("a", *["look"] * 40), Play(Game("b", "train", "find", Path("b")), confused), plan("c", "win")]
    with pool_of(processes=2) as pool, pytest.raises(LookupError, match="the model is gone"):
        play_all(pool, plans)
    assert children() == []


def test_a_closed_pool_ends_games_under_way_and_begins_none() -> None:
    pool = pool_of(seconds=60)
    failures: list[str] = []

    def sleeper() -> None:
        failures.extend(result.failure for result in play_all(pool, [plan("a", "sleep"), plan("b", "win")]))

    thread = threading.Thread(target=sleeper)
    thread.start()
    while not children():
        time.sleep(0.01)
    time.sleep(0.5)
    pool.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert len(failures) == 2
    assert failures[1] == "The environments are closed."
    assert children() == []
    with pytest.raises(GameError, match="closed"), pool.episode(Path("c")):
        pass


SCRIPT = """
import sys
from pathlib import Path
from agentflow.tasks.alfworld.pool import EnvironmentPool, PoolSettings
from tests.fake_world import open_fake

if __name__ == "__main__":
    with EnvironmentPool(PoolSettings(processes=1), opener=open_fake) as pool, pool.episode(Path("a")) as episode:
        episode.reset()
        print(episode.step("pid").observation, flush=True)
        episode.step(sys.argv[1])
        print("done", flush=True)
"""


def started(tmp_path: Path, command: str, source: str = SCRIPT) -> tuple[subprocess.Popen[str], int]:
    """A process of its own group that plays a game, and the number that it prints first: its worker's."""
    script = tmp_path / "script.py"
    script.write_text(source)
    process = subprocess.Popen(
        [sys.executable, str(script), command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def gone(number: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(os.name == "nt", reason="needs process groups")
def test_ctrl_c_leaves_no_process_and_no_noise_of_the_worker(tmp_path: Path) -> None:
    process, worker = started(tmp_path, "sleep")
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert said.count("KeyboardInterrupt") == 1
    assert gone(worker)


BATCH = """
import sys
from pathlib import Path
from agentflow.tasks.alfworld.episodes import Play, play_all, replay
from agentflow.tasks.alfworld.games import Game
from agentflow.tasks.alfworld.pool import EnvironmentPool, PoolSettings
from tests.fake_world import open_fake

if __name__ == "__main__":
    plans = [Play(Game(f"g{n}", "train", "find", Path("a")), replay(["win"] if n < 1 else ["sleep"])) for n in range(9)]
    with EnvironmentPool(PoolSettings(processes=2), opener=open_fake) as pool:
        play_all(pool, plans, told=lambda result: print(0, flush=True))
"""


@pytest.mark.skipif(os.name == "nt", reason="needs process groups")
def test_ctrl_c_ends_all_of_many_games(tmp_path: Path) -> None:
    process, _ = started(tmp_path, "", BATCH)
    time.sleep(0.3)
    workers = [child.pid for child in psutil.Process(process.pid).children()]
    assert len(workers) >= 2
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    assert all(gone(worker) for worker in workers)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
@pytest.mark.parametrize("command", ["sleep", "spin"])
def test_a_worker_dies_with_its_parent_whatever_it_is_doing(tmp_path: Path, command: str) -> None:
    process, worker = started(tmp_path, command)
    time.sleep(0.3)
    process.kill()
    process.communicate(timeout=30)
    assert gone(worker)


def test_what_an_engine_prints_is_kept_from_standard_output(tmp_path: Path) -> None:
    process, _ = started(tmp_path, "print")
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.read() == "done\n"
        assert process.stderr.read() == "noise of an engine\n"
    assert process.returncode == 0


def test_without_the_engine_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"textworld.*pip install 'agentflow-kv\[alfworld\]'.*cmake"):
        EnvironmentPool()
    with pytest.raises(UserError, match="not installed"):
        require_engine()


@pytest.mark.parametrize(
    "wrong", [{"processes": 0}, {"games_per_process": 0}, {"step_seconds": 0}, {"open_seconds": -1}]
)
def test_a_pool_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one process"):
        PoolSettings(**wrong)


def test_states_cross_as_json() -> None:
    from agentflow.tasks.alfworld.state import State

    state = State("Ein Tisch – ≥ 1", ("look",), done=True, won=False)
    assert State.from_json(json.loads(json.dumps(state.to_json()))) == state
