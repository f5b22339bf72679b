"""Warnings of a run: alike ones are told a few times, and counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.runtime.events import Event

TOLD = 3
"""How often alike warnings are told where lines can't be taken back."""
SHOWN = 4
"""How many kinds of warnings a live view has room for."""
_FIGURE = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")


@dataclass
class _Kind:
    """Warnings that differ in their figures only: how they begin, the latest of them, and their number."""

    about: str
    text: str = ""
    count: int = 0

    @property
    def line(self) -> str:
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return f"warning: {self.about}: {self.text}{times}"


class Warned:
    """Counts the warnings among a run's events. Lines hold foreign text: make them `visible` before they are shown."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def __call__(self, event: Event) -> list[str]:
        """Take in one event; the lines to print now where lines can't be taken back."""
        if event.kind == "run_finished":
            return [kind.line for kind in self._kinds.values() if kind.count > TOLD]
        if event.kind != "warning":
            return []
        about, text = f"{event.node} ← {event.data['sender']}", str(event.data["text"])
        kind = self._kinds.setdefault((about, _FIGURE.sub("#", text)), _Kind(about))
        kind.text, kind.count = text, kind.count + 1
        more = " (more of these are counted)" if kind.count == TOLD else ""
        return [f"warning: {about}: {text}{more}"] if kind.count <= TOLD else []

    def lines(self) -> list[str]:
        """The kinds in the order they came, each with its number, for a view that is drawn anew."""
        lines = [kind.line for kind in self._kinds.values()]
        more = len(lines) - SHOWN
        return [*lines[:SHOWN], f"warning: {more} other kinds, see the run's events"] if more > 0 else lines
