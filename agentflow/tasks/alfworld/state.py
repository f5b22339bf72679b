"""What an environment says after a command, and what it is to be one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class State:
    """What is seen, what can be done next, whether the game is over, and whether it is won."""

    observation: str
    admissible: tuple[str, ...]
    done: bool = False
    won: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        admissible = list(self.admissible)
        return {"observation": self.observation, "admissible": admissible, "done": self.done, "won": self.won}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> State:
        """Return what `to_json` gave."""
        return cls(values["observation"], tuple(values["admissible"]), bool(values["done"]), bool(values["won"]))


class Environment(Protocol):
    """A game being played. It may raise anything: it runs in a process of its own."""

    def reset(self) -> State:
        """Start from the beginning."""

    def step(self, command: str) -> State:
        """Do what the command says; one that is not admissible changes nothing, and the observation says so."""


class GameError(Exception):
    """A game could not be started or went wrong: a crash, no answer in time, an error of the engine."""
