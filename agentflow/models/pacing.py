"""When a server is asked: not more often than agreed, not while it wants to be left alone, later after each failure."""

from __future__ import annotations

import asyncio
import math
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds before the second try, and at most before any later one."""


class Pace:
    """Spaces the requests to one server; used inside one event loop.

    Args:
        per_minute: no more requests than that; None for no limit.
    """

    def __init__(self, per_minute: float | None) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until the next request may be sent."""
        now = asyncio.get_running_loop().time()
        at = max(now, self._next)
        self._next = at + self._gap
        if at > now:
            await asyncio.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Send nothing for a while, whoever wants to: the server has asked for that."""
        self._next = max(self._next, asyncio.get_running_loop().time() + seconds)


def backoff(failed: int) -> float:
    """Seconds to wait after so many failures: doubled each time, and drawn, so that many don't come back at once."""
    most = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (failed - 1))
    return random.uniform(most / 2, most)  # noqa: S311 - decides on no answer, and guards no secret


def retry_after(value: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for, as a number or a date (RFC 9110); None where it says nothing."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            until = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
