"""From what a model said to a command that the game understands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

How = Literal["exact", "normalised", "prefix"]

_LABEL = re.compile(r"^\s*(?:(?:next\s+)?(?:action|act|command)(?:\s*\d+)?\s*:|>)\s*", re.IGNORECASE)
_THOUGHT = re.compile(r"^\s*(?:>\s*)?(?:think|thought|reasoning)(?:\s*\d+)?\s*:", re.IGNORECASE)
_EDGES = " \t\"'`*_.,;:!?<>[](){}"
_PUNCTUATION = re.compile(r"[\"'`*_,;:!?()\[\]{}]")
_ARTICLES = re.compile(r"\b(?:the|a|an)\b")
# "apple1" and "apple #1" are how some models write "apple 1".
_NUMBER = re.compile(r"(?<=[a-z])\s*#?\s*(\d+)\b")
# ALFWorld before 0.4, and prompts written for it, say "put X in/on Y".
_PUT = re.compile(r"^(?:put|place|move)\s+(.+?)\s+(?:in\s*/\s*on|in/on|inside|into|onto|in|on|to)\s+(.+)$")
_VERBS = (
    (re.compile(r"^(?:goto|walk to|move to|navigate to)\b"), "go to"),
    (re.compile(r"^(?:pick up|grab|get)\b"), "take"),
    (re.compile(r"^(?:turn on|toggle|switch on)\b"), "use"),
)


@dataclass(frozen=True)
class Match:
    """An admissible command, and how it was recognised."""

    command: str
    how: How


def match_action(answer: str, admissible: Sequence[str]) -> Match | None:
    """Return the admissible command that an answer names, or None.

    The first line of the answer that says anything besides a thought is read ("Action: …" before any other). In this
    order: it is a command letter by letter; it is one when case, articles, quotes, punctuation and common synonyms
    ("put X in/on Y", "pick up") don't count; it begins exactly one command, or begins with one, at a word's end
    ("go to desk 1 to look for a pen" is "go to desk 1" and never "go to desk 10"). Pure: equal arguments, equal match.
    """
    said = spoken(answer)
    if not said:
        return None
    if said in admissible:
        return Match(said, "exact")
    by_form: dict[str, str] = {}
    for command in admissible:
        by_form.setdefault(normalise(command), command)
    wanted = normalise(said)
    if wanted in by_form:
        return Match(by_form[wanted], "normalised")
    longest = max((form for form in by_form if _begins(wanted, form)), key=len, default=None)
    if longest is not None:
        return Match(by_form[longest], "prefix")
    longer = {by_form[form] for form in by_form if _begins(form, wanted)}
    return Match(longer.pop(), "prefix") if len(longer) == 1 else None


def spoken(answer: str) -> str:
    """Return the line of an answer that is meant as a command, without its label; "" if there is none."""
    lines = [line for line in answer.splitlines() if line.strip() and not _THOUGHT.match(line)]
    labelled = [line for line in lines if _LABEL.match(line)]
    for line in [*labelled, *lines]:
        said = _LABEL.sub("", line).strip(_EDGES)
        if said:
            return said
    return ""


def normalise(command: str) -> str:
    """Return a command's form for comparing: lower case, single spaces, no articles, the engine's own verbs."""
    text = _ARTICLES.sub(" ", _PUNCTUATION.sub(" ", command.casefold()))
    text = _NUMBER.sub(r" \1", text)
    text = " ".join(text.split()).rstrip(". ")
    for pattern, verb in _VERBS:
        text = pattern.sub(verb, text)
    return _PUT.sub(r"move \1 to \2", text)


def closest(answer: str, admissible: Iterable[str]) -> str | None:
    """Return the admissible command that shares most words with an answer, the first of equals; None if none does.

    A last resort where every answer must become a move. `match_action` guesses nothing; this does.
    """
    words = set(normalise(spoken(answer)).split())
    best, score = None, 0.0
    for command in admissible:
        theirs = set(normalise(command).split())
        shared = len(words & theirs) / max(1, len(words | theirs))
        if shared > score:
            best, score = command, shared
    return best


def _begins(text: str, start: str) -> bool:
    """Tell whether `text` begins with `start` and goes on with another word."""
    return bool(start) and text.startswith(start + " ")
