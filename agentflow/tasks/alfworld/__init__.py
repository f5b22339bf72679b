"""ALFWorld: households in text (Shridhar et al. 2021, arXiv 2010.03768), played on the real engine.

Games come from a folder or an archive (`games_folder`, `list_games`); `EnvironmentPool` plays them in processes of
their own; `match_action` and `react_prompt` stand between a model and a game. The task is `AlfWorld`.
"""

from agentflow.tasks.alfworld.actions import Match, closest, match_action
from agentflow.tasks.alfworld.archive import games_folder
from agentflow.tasks.alfworld.episodes import EpisodeResult, Play, Turn, play, play_all, walkthrough_of
from agentflow.tasks.alfworld.games import Game, iter_games, list_games
from agentflow.tasks.alfworld.pool import EnvironmentPool, Episode, PoolSettings
from agentflow.tasks.alfworld.prompt import Opening, react_prompt, split_opening
from agentflow.tasks.alfworld.state import GameError, State
from agentflow.tasks.alfworld.summary import Tally, tallies
from agentflow.tasks.alfworld.task import AlfWorld, AlfWorldSettings

__all__ = [
    "AlfWorld",
    "AlfWorldSettings",
    "EnvironmentPool",
    "Episode",
    "EpisodeResult",
    "Game",
    "GameError",
    "Match",
    "Opening",
    "Play",
    "PoolSettings",
    "State",
    "Tally",
    "Turn",
    "closest",
    "games_folder",
    "iter_games",
    "list_games",
    "match_action",
    "play",
    "play_all",
    "react_prompt",
    "split_opening",
    "tallies",
    "walkthrough_of",
]
