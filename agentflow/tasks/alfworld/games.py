"""The games below a folder, as ALFWorld lays them out: `json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from agentflow.errors import DataError
from agentflow.tasks.alfworld.gamefile import GameFile, read_game, read_task_type

logger = logging.getLogger(__name__)

Split = Literal["valid_seen", "valid_unseen", "train"]
SPLITS: tuple[Split, ...] = get_args(Split)
LAYOUT = "json_2.1.1"
GAME, TRAJECTORY = "game.tw-pddl", "traj_data.json"

# `valid_train` is ALFWorld's sample of training games.
_FOLDERS: dict[Split, tuple[str, ...]] = {
    "valid_seen": ("valid_seen",),
    "valid_unseen": ("valid_unseen",),
    "train": ("train", "valid_train"),
}


@dataclass(frozen=True)
class Game:
    """One game. `id` is its place in the layout, "valid_seen/pick_…-Sofa-229/trial_T…"; `file` what is played."""

    id: str
    split: Split
    task_type: str
    file: Path

    def read(self) -> GameFile:
        """Return the checked game file; `DataError` naming it if it is wrong."""
        return read_game(self.file)


def iter_games(
    root: Path, *, splits: Collection[Split] = SPLITS, task_types: Collection[str] = ()
) -> Iterator[tuple[Game, GameFile]]:
    """Give the playable games below a folder in order of split and id, with their files read.

    As in ALFWorld's own lists, games with movable receptacles or sliced objects, and those that are not marked as
    solvable, are left out; the log says how many.

    Args:
        root: the folder that holds `json_2.1.1`, or that folder itself.
        task_types: only these; all where empty.

    Raises:
        DataError: no such folder, no game in it, or a file that is wrong.
    """
    base = _base(root)
    unplayable, found = 0, False
    for split in SPLITS:
        if split not in splits:
            continue
        for file in _files(base, split):
            found = True
            kind = read_task_type(file.with_name(TRAJECTORY))
            if task_types and kind not in task_types:
                continue
            contents = read_game(file)
            if _unsupported(file, base) or not contents.solvable:
                unplayable += 1
                continue
            yield Game(file.parent.relative_to(base).as_posix(), split, kind, file), contents
    if unplayable:
        logger.info("%s: left out %d games that can't be solved in text", root, unplayable)
    if not found:
        raise DataError(f"No games of {', '.join(splits)} here.", where=str(root), fix=_expected())


def list_games(root: Path, *, splits: Collection[Split] = SPLITS, task_types: Collection[str] = ()) -> list[Game]:
    """Return the playable games below a folder; see `iter_games`."""
    return [game for game, _ in iter_games(root, splits=splits, task_types=task_types)]


def _base(root: Path) -> Path:
    if not root.is_dir():
        raise DataError("There is no such folder.", where=str(root))
    inner = root / LAYOUT
    return inner if inner.is_dir() else root


def _files(base: Path, split: Split) -> list[Path]:
    return sorted(file for name in _FOLDERS[split] for file in (base / name).glob(f"*/*/{GAME}"))


def _unsupported(file: Path, base: Path) -> bool:
    place = file.relative_to(base).as_posix()
    return "movable" in place or "Sliced" in place


def _expected() -> str:
    return f"Expected {LAYOUT}/SPLIT/TASK/TRIAL/{GAME}, where SPLIT is valid_seen, valid_unseen, train or valid_train."
