"""What `train` and `models derive` share: finding a recipe, and showing steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentflow.cli.console import err, plain
from agentflow.errors import UserError

_LINES = 20
"""Lines that a whole training writes where there is no terminal."""


def find_recipe(kind: str, ref: str) -> Path:
    """The file that `ref` means: a path, or a name in `configs/KIND` of the working folder or of what ships."""
    from agentflow.workflow import library

    places = [*library.with_suffixes(Path(ref)), *library.with_suffixes(Path("configs") / kind / ref)]
    found = next((p for p in places if library.is_file(p)), None) or library.find(f"configs/{kind}/{ref}")
    if found is None:
        names = sorted(Path(name).name for name in library.shipped("configs") if name.startswith(f"{kind}/"))
        raise UserError(f"There is no recipe '{ref}'.", fix=f"Name a file, or one that ships: {', '.join(names)}.")
    return found


class Shown:
    """A bar with loss and rate on a terminal, else some plain lines."""

    def __init__(self, what: str, steps: int) -> None:
        self._steps, self._every = steps, max(1, steps // _LINES)
        columns: Any = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=err, disable=not err.is_terminal)
        self._task = self._bar.add_task(what, total=steps, told="")
        self._said = ""

    def __enter__(self) -> Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def wait(self, what: str, share: float | None) -> None:
        """Show what is done before the first step, as a `Progress` of the models room."""
        self._bar.update(self._task, told=what if share is None else f"{what}: {share:.0%}")
        if self._bar.disable and what != self._said:
            err.print(f"{plain(what)} …", style="dim", soft_wrap=True)
        self._said = what

    def take(self, step: int, loss: float, rate: float, speed: float, validated: str) -> None:
        """Show one step; `validated` says in words what was measured behind it, or nothing."""
        told = f"loss {loss:.3f}, rate {rate:.1e}, {speed:,.0f} tokens/s"
        self._bar.update(self._task, completed=step, told=told)
        if validated or (self._bar.disable and step % self._every == 0):
            line = f"step {step} of {self._steps}: {told}"
            err.print(f"{line}; {validated}" if validated else line, soft_wrap=True)
