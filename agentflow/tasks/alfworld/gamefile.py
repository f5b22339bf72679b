"""ALFWorld's own files, checked: `game.tw-pddl` and `traj_data.json` come from strangers.

A `game.tw-pddl` is a JSON object with `pddl_domain`, `grammar` and `pddl_problem` (texts), and mostly `solvable`
and `walkthrough` (a list of commands; the training games have none).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from agentflow.errors import DataError

MAX_BYTES = 16 * 1024**2
MAX_COMMAND = 500
MAX_WALKTHROUGH = 1000
TaskType = Literal[
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
]
TASK_TYPES: tuple[str, ...] = get_args(TaskType)

Names = Literal["display", "ids"]
"""What things are called in a game: "desk 1", as everyone reports results on, or by their raw PDDL ids."""

_GOAL = re.compile(r'Your task is to: ([^"\\\n]{1,1000})')


@dataclass(frozen=True)
class GameFile:
    """What the engine plays. `goal` is the task in words, "put a book in sofa."."""

    domain: str
    grammar: str
    problem: str
    goal: str
    solvable: bool
    walkthrough: tuple[str, ...]

    @property
    def walkthrough_names(self) -> Names:
        """The names that the walkthrough speaks in: an id spells its coordinates ("desk_bar__minus_00_dot_57…")."""
        return "ids" if any("_bar_" in command for command in self.walkthrough) else "display"

    def engine_data(self) -> dict[str, Any]:
        """The mapping that TextWorld loads in place of a file."""
        return {
            "pddl_domain": self.domain,
            "grammar": self.grammar,
            "pddl_problem": self.problem,
            "walkthrough": list(self.walkthrough) or None,
        }


def read_game(path: Path) -> GameFile:
    """Return a checked game; `DataError` naming the file says what is wrong with it."""
    values = _json_object(path)
    grammar = _text(values, "grammar", path)
    goal = _GOAL.search(grammar)
    if goal is None:
        raise DataError("The game's grammar states no task ('Your task is to: …').", where=str(path))
    solvable = values.get("solvable", False)
    if not isinstance(solvable, bool):
        raise DataError("'solvable' must be true or false.", where=str(path))
    return GameFile(
        domain=_text(values, "pddl_domain", path),
        grammar=grammar,
        problem=_text(values, "pddl_problem", path),
        goal=goal.group(1).strip(),
        solvable=solvable,
        walkthrough=_walkthrough(values.get("walkthrough"), path),
    )


def read_task_type(path: Path) -> str:
    """Return the task type that a `traj_data.json` names; `DataError` if it is none of `TASK_TYPES`."""
    found = _text(_json_object(path), "task_type", path)
    if found not in TASK_TYPES:
        raise DataError(f"Unknown task type {found[:80]!r}.", where=str(path), fix=f"Known: {', '.join(TASK_TYPES)}.")
    return found


def _json_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"The file can't be read: {reason}.", where=str(path)) from None
    if len(content) > MAX_BYTES:
        raise DataError(f"The file is larger than {MAX_BYTES:,} bytes.", where=str(path))
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, or a number of 5,000 digits
        raise DataError(f"The file is not JSON ({str(error)[:120]}).", where=str(path)) from None
    if not isinstance(values, dict):
        raise DataError("The file must hold a JSON object.", where=str(path))
    return values


def _text(values: dict[str, Any], key: str, path: Path) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"'{key}' must be a text that is not empty.", where=str(path))
    if "\0" in value or not _is_utf8(value):
        raise DataError(f"'{key}' holds characters that are no text.", where=str(path))
    return value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: legal in JSON, and no text
        return False
    return True


def _walkthrough(value: Any, path: Path) -> tuple[str, ...]:
    if value is None:
        return ()
    fine = isinstance(value, list) and len(value) <= MAX_WALKTHROUGH
    if not fine or not all(isinstance(entry, str) and 0 < len(entry) <= MAX_COMMAND for entry in value):
        raise DataError("'walkthrough' must be a list of commands.", where=str(path))
    return tuple(value)
