"""ALFWorld's stored walkthroughs played on the real engine: what the harness can't win, no agent can.

Seen games speak in display names, unseen ones in PDDL ids; each is played in the names of its own walkthrough.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentflow.errors import UserError
from agentflow.tasks.alfworld.archive import games_folder
from agentflow.tasks.alfworld.episodes import EpisodeResult, play_all, walkthrough_of
from agentflow.tasks.alfworld.games import SPLITS, iter_games
from agentflow.tasks.alfworld.pool import EnvironmentPool, PoolSettings
from agentflow.tasks.alfworld.summary import tallies

console = Console(width=110, highlight=False)


def main() -> None:
    """Play and report; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of games, or the archive of one")
    parser.add_argument("--split", choices=SPLITS, default="valid_seen")
    parser.add_argument("--processes", type=int, default=2, help="games at once (default: 2)")
    parser.add_argument("--games-per-process", type=int, default=25, help="then a process is replaced (default: 25)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for an answer (default: 180)")
    parser.add_argument("--limit", type=int, help="only the first games")
    parser.add_argument("--quick", action="store_true", help="six games")
    chosen = parser.parse_args()
    found = iter_games(games_folder(chosen.data), splits=(chosen.split,))
    plans = [walkthrough_of(game, contents) for game, contents in found if contents.walkthrough]
    plans = plans[: 6 if chosen.quick else chosen.limit]
    settings = PoolSettings(chosen.processes, chosen.games_per_process, chosen.timeout, chosen.timeout)
    start = time.perf_counter()
    with EnvironmentPool(settings) as pool:
        results = play_all(pool, plans, told=say)
    seconds = time.perf_counter() - start
    table(f"Walkthroughs of {chosen.split}", results)
    won = sum(result.won for result in results)
    print(json.dumps({"games": len(results), "won": won, "seconds": round(seconds, 1)}))


def say(result: EpisodeResult) -> None:
    """One line for a game that was not won."""
    if not result.won:
        console.print(f"not won: {result.game} ({result.failure or f'{result.steps} steps'})", markup=False)


def table(title: str, results: list[EpisodeResult]) -> None:
    """Wins, steps and seconds by task type."""
    shown = Table(title=title, title_justify="left")
    for column in ("task type", "games", "won", "failed", "steps", "seconds a game"):
        shown.add_column(column, justify="left" if column == "task type" else "right")
    for row in tallies(results):
        steps = "-" if row.steps is None else f"{row.steps:.1f}"
        each = f"{row.seconds / row.games:.2f}" if row.games else "-"
        shown.add_row(row.task_type, str(row.games), str(row.won), str(row.failed), steps, each)
    console.print(shown)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
