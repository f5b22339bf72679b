"""Errors that a person can act on.

Everything a user can cause and fix is a `UserError`: one sentence of what is wrong, where it is and how to
mend it. The command line prints it without a traceback and exits with code 2. Anything else that escapes is
a bug of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong entry of a mapping: its path in there, what is wrong, how to fix it, and whether that is the key."""

    path: tuple[str | int, ...]
    what: str
    fix: str = ""
    is_key: bool = False

    def __str__(self) -> str:
        hint = self.fix.rstrip(".")
        return f"{self.what} ({hint[:1].lower()}{hint[1:]})" if hint else self.what


class UserError(Exception):
    """What is wrong (`what`), where (`where`: a file, a key, an argument) and how to fix it (`fix`).

    Where it is about the entries of a mapping, `faults` has each of them, so that a file can show its place.
    """

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None, faults: Sequence[Fault] = ()
    ) -> None:
        self.what, self.where, self.fix, self.faults = what, where, fix, tuple(faults)
        super().__init__(what)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" {self.fix}" if self.fix else ""
        return f"{place}{self.what}{advice}"


class WorkflowError(UserError):
    """A workflow, agent or config file is wrong; `__str__` gives every problem with file:line:col."""


class ModelError(UserError):
    """A model can't be found, loaded or served."""


class ChannelError(UserError):
    """A channel is unknown, badly set up, or does not fit the pair of models it joins."""


class AdapterError(UserError):
    """An adapter or its bundle is unknown, damaged, badly set up, or of another pair of models."""


class AgentMemoryError(UserError):
    """An agent's conversation would become longer than its memory allows."""


class PayloadError(UserError):
    """A payload is damaged, foreign, unsigned, or does not fit its receiver."""


class DataError(UserError):
    """A data file of a task is missing, damaged, empty or not of the expected form."""


class RunError(UserError):
    """A stored run can't be used: missing, incomplete, locked, or made by another workflow."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest known name, or the list of known names, or ""."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known: {', '.join(names)}." if names else ""
