"""What is wrong with a file, and the one error that tells all of it at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from agentflow.errors import WorkflowError, did_you_mean
from agentflow.workflow.location import KeyPath, Location, shown_path

MOST_SHOWN = 20
MOST_NAMED = 30


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it stands, under which key, what is wrong and how to mend it.

    `what` starts in lower case and has no full stop; `fix` is one or more whole sentences, or "".
    """

    location: Location
    path: KeyPath
    what: str
    fix: str = ""

    def __str__(self) -> str:
        key = f"{shown_path(self.path)}: " if self.path else ""
        stop = "" if self.what.endswith((".", "?", "!")) else "."
        advice = f" {self.fix}" if self.fix else ""
        headline = f"{self.location} – {key}{self.what}{stop}{advice}"
        snippet = self.location.snippet()
        return f"{headline}\n{snippet}" if snippet else headline


class WorkflowProblemsError(WorkflowError):
    """Every problem found in a workflow and the files it uses, in the order of the text."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        ordered = sorted(dict.fromkeys(problems), key=_position)
        self.problems: tuple[Problem, ...] = tuple(ordered)
        lines = [str(problem) for problem in ordered[:MOST_SHOWN]]
        if len(ordered) > MOST_SHOWN:
            lines.append(f"… and {len(ordered) - MOST_SHOWN} more")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[WorkflowProblemsError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def raise_problems(problems: Iterable[Problem]) -> NoReturn:
    """Raise the problems as one `WorkflowProblemsError`; there must be at least one."""
    found = list(problems)
    if not found:
        raise ValueError("raise_problems needs a problem to raise")
    raise WorkflowProblemsError(found)


def fail(location: Location, what: str, fix: str = "", path: KeyPath = ()) -> NoReturn:
    """Raise a single problem."""
    raise WorkflowProblemsError([Problem(location, path, what, fix)])


def quoted(value: object, limit: int = 60) -> str:
    """Quote foreign text for a message: one line, no control characters, cut when long."""
    text = str(value)
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)
    return f"'{safe}'"


def described(value: Any) -> str:
    """Say what a YAML value is, in words: "the text 'twelve'", "the number 3", "a list", "nothing"."""
    if isinstance(value, str):
        return f"the text {quoted(value, 40)}" if value else "an empty text"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {quoted(value, 30)[1:-1]}"
    if isinstance(value, list | tuple | dict):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "Did you mean 'x'?", or the known names when they are few, or ""."""
    names = list(known)
    advice = did_you_mean(name, names)
    return advice if len(names) <= MOST_NAMED or advice.startswith("Did") else ""


def _position(problem: Problem) -> tuple[str, int, int]:
    return problem.location.file, problem.location.line, problem.location.column
