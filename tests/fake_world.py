"""A text game of ours that misbehaves on command, in a process as real as the engine's, and small game files."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from agentflow.tasks.alfworld.gamefile import Names
from agentflow.tasks.alfworld.state import State

COMMANDS = ("go to desk 1", "go to desk 10", "look", "win")


class FakeWorld:
    def __init__(self, file: Path, names: Names) -> None:
        self.file, self.names = file, names

    def reset(self) -> State:
        if self.file.name == "slow-reset":
            time.sleep(60)
        return State(f"A room of {self.file.name} in {self.names} names.\n\nYour task is to: win.", COMMANDS)

    def step(self, command: str) -> State:
        match command:
            case "win":
                return State("You won.", (), done=True, won=True)
            case "sleep":
                time.sleep(60)
            case "spin":
                while True:
                    pass
            case "exit":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise RuntimeError("the planner is confused")
            case "hog":
                return State(str(len(bytearray(2 * 1024**3))), COMMANDS)
            case "print":
                print("noise of an engine", flush=True)  # noqa: T201 - engines do
            case "pid":
                return State(str(os.getpid()), COMMANDS)
        return State(f"You {command}.", COMMANDS)


def open_fake(file: Path, names: Names) -> FakeWorld:
    if file.name == "broken":
        raise OSError("no such game")
    if file.name == "deadly":
        os._exit(3)
    return FakeWorld(file, names)


GRAMMAR = 'grammar :: """ {"task": [{"rhs": "Your task is to: put a book in sofa."}]} """;'


def game_file(**changes: Any) -> dict[str, Any]:
    """What a `game.tw-pddl` holds, as far as reading is concerned; no engine could play it."""
    values = {
        "pddl_domain": "(define (domain d))",
        "grammar": GRAMMAR,
        "pddl_problem": "(define (problem p))",
        "solvable": True,
        "walkthrough": ["go to desk 1", "take book 1 from desk 1"],
    }
    return {key: value for key, value in {**values, **changes}.items() if value is not None}


def write_game(root: Path, place: str, *, task_type: str = "pick_and_place_simple", **changes: Any) -> Path:
    """Write a game below `root` at SPLIT/TASK/TRIAL; return its file."""
    folder = root / "json_2.1.1" / place
    folder.mkdir(parents=True)
    (folder / "traj_data.json").write_text(json.dumps({"task_type": task_type}))
    file = folder / "game.tw-pddl"
    file.write_text(json.dumps(game_file(**changes)))
    return file


class LateWorld(FakeWorld):
    """The same, where winning can be thought of only after two other commands."""

    seen = 0

    def reset(self) -> State:
        self.seen = 0
        return State(super().reset().observation, COMMANDS[:3])

    def step(self, command: str) -> State:
        self.seen += 1
        found = super().step(command)
        return found if found.done else State(found.observation, COMMANDS if self.seen >= 2 else COMMANDS[:3])


def open_late(file: Path, names: Names) -> LateWorld:
    return LateWorld(file, names)
