"""The real engine: TextWorld's PDDL environment with ALFWorld's names.

Made for worker processes: a planner library in C++ keeps one state a process, and memory grows with each game.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentflow.errors import UserError
from agentflow.tasks.alfworld.expressions import evaluate
from agentflow.tasks.alfworld.gamefile import Names, read_game
from agentflow.tasks.alfworld.names import display_names
from agentflow.tasks.alfworld.state import State

# A package index name, for the message; see pyproject.toml for the versions.
EXTRA = "agentflow-kv[alfworld]"
_BANNER = re.compile(r"\A-= Welcome to TextWorld, ALFRED! =-\s*")


def require_engine() -> None:
    """Raise `UserError` with the command that installs the engine, where it is missing."""
    missing = [name for name in ("textworld", "fast_downward") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"ALFWorld games need the engine TextWorld, which is not installed (no package {missing[0]}).",
            fix=f"Run: pip install '{EXTRA}' (it builds a planner from source: cmake and g++, several minutes).",
        )


def open_game(file: Path, names: Names) -> TextWorldGame:
    """Return a game ready to be reset; `DataError` for a bad file, `UserError` without the engine."""
    require_engine()
    return TextWorldGame(file, names)


class TextWorldGame:
    """One game on TextWorld."""

    def __init__(self, file: Path, names: Names) -> None:
        contents = read_game(file)
        textworld: Any = _load_textworld()
        self._env = textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        self._env.load(contents.engine_data())
        if names == "display":
            infos = self._env._entity_infos  # as alfworld's own wrapper does
            shown = display_names(info.id for info in infos.values())
            for info in infos.values():
                info.name = shown[info.id]

    def reset(self) -> State:
        """Start from the beginning; the observation is the room and the task."""
        return _state(self._env.reset(), done=False)

    def step(self, command: str) -> State:
        """Do what an admissible command says; any other gives "Nothing happens."."""
        found, _, done = self._env.step(command)
        return _state(found, done=bool(done))


def _state(found: Any, *, done: bool) -> State:
    observation = _BANNER.sub("", str(found.feedback)).strip()
    return State(observation, tuple(found["admissible_commands"]), done, bool(found["won"]))


def _load_textworld() -> Any:
    """Return TextWorld with its one hole closed: it runs expressions of a game file's grammar as Python."""
    import textworld
    import textworld.envs
    from textworld.envs.pddl import textgen

    def derive(symbol: Any, context: Any = None) -> list[Any]:
        variables = (context or symbol.context)["variables"]
        return [textgen.TerminalSymbol(evaluate(symbol.expression, variables))]

    textgen.EvalSymbol.derive = derive
    return textworld
