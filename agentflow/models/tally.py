"""How many tokens the engines compute while something runs, whoever asks them for it.

A channel may run models on its way: to encode a sender's words, to score positions, to write. The engines count it,
so that no channel has to be believed about what it cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Tally:
    """Tokens so far: `prefilled` were computed as prompts, `generated` are answers."""

    prefilled: int = 0
    generated: int = 0


_running: ContextVar[Tally | None] = ContextVar("agentflow_tally", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Count what any engine computes inside, in this thread; the innermost of nested tallies counts."""
    found = Tally()
    token = _running.set(found)
    try:
        yield found
    finally:
        _running.reset(token)


def count(*, prefilled: int = 0, generated: int = 0) -> None:
    """Add to the tally that is running; nothing happens without one."""
    tally = _running.get()
    if tally is not None:
        tally.prefilled += prefilled
        tally.generated += generated
