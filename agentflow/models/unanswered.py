"""What can go wrong when a remote model is asked, in words: one finding for each try, one error at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx2

from agentflow.errors import ModelError
from agentflow.models.endpoint import Endpoint
from agentflow.models.pacing import retry_after
from agentflow.models.spec import ModelSpec

MOST_WORDS = 300
"""Characters of a server's own words that an error repeats."""
_PASSING = (408, 409, 425, 429)


class BadAnswer(Exception):  # noqa: N818 - a finding about a server's answer; the caller makes an error of it
    """A server's answer that is not what was asked for, in words.

    Args:
        passing: another try may give a better one.
        status: HTTP's number for it, where there is one.
        wait: seconds after which the server wants to be asked again.
    """

    def __init__(
        self, what: str, *, passing: bool = True, status: int | None = None, wait: float | None = None
    ) -> None:
        self.passing, self.status, self.wait = passing, status, wait
        super().__init__(what)


class Silence(BadAnswer):
    """Nothing came in time."""


class ForeignAnswer(BadAnswer):
    """What came is not from such an endpoint at all."""


class UnansweredError(ModelError, TimeoutError):
    """A remote model kept silent for too long."""


def failure(found: Any, *, status: int | None = None) -> BadAnswer:
    """What a server says about its own failure, in its words, shortened; and whether it may pass."""
    error = found.get("error", found) if isinstance(found, dict) else found
    words = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    code = error.get("code") if isinstance(error, dict) else None
    if status is None and isinstance(code, int):
        status = code
    may_pass = status is None or status in _PASSING or status >= 500
    spent = code == "insufficient_quota"  # a 429 that no waiting cures
    text = " ".join(words.split())[:MOST_WORDS] if isinstance(words, str) else ""
    return BadAnswer(text, passing=may_pass and not spent, status=status)


def refused(response: httpx2.Response, body: str, endpoint: Endpoint) -> BadAnswer:
    """What an answer with another status than 200 says."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    if response.is_redirect:
        target = response.headers.get("location", "")[:MOST_WORDS]
        return BadAnswer(f"{status}: it sends requests to {target}; write that address", passing=False)
    try:
        found = failure(json.loads(endpoint.cleaned(body)), status=response.status_code)
    except (ValueError, RecursionError):  # a proxy's page
        found = failure("", status=response.status_code)
    wait = retry_after(response.headers.get("retry-after"))
    asks = f"; it asks for {wait:.0f} s of patience" if wait is not None and wait > endpoint.timeout else ""
    words = f": {found}" if str(found) else ""
    return BadAnswer(f"{status}{words}{asks}", passing=found.passing, status=response.status_code, wait=wait)


def in_words(error: Exception, endpoint: Endpoint) -> BadAnswer:
    """A failure of whatever kind."""
    lost = "the connection was lost before the answer ended"
    match error:
        case BadAnswer():
            found = error
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            found = BadAnswer("it can't be reached")
        case httpx2.TimeoutException():
            found = Silence(f"not a word for {endpoint.silence:g} s (`silence`)")
        case TimeoutError():
            found = Silence(f"no whole answer within {endpoint.timeout:g} s (`timeout`)")
        case httpx2.SSEError():
            found = too_long(endpoint.max_bytes)
        case httpx2.ReadError() | httpx2.WriteError() | httpx2.RemoteProtocolError():
            found = BadAnswer(lost)
        case _:
            found = BadAnswer(f"{type(error).__name__}: {error}", passing=False)
    return found


def too_long(most: int) -> BadAnswer:
    """An answer of more bytes than allowed."""
    return BadAnswer(f"its answer is longer than {most:,} bytes (`max_bytes`)", passing=False)


def unanswered(spec: ModelSpec, failures: Sequence[BadAnswer]) -> ModelError:
    """What to tell after the last failure: all of them, each once, and what may mend it."""
    end, last = spec.remote, failures[-1]
    assert end is not None
    counted = Counter(map(str, failures))
    tale = "; ".join(f"{what} ({n} times)" if n > 1 else what for what, n in counted.items())
    tries = f" in {len(failures)} tries" if len(failures) > 1 else ""
    fix = None
    if last.status in (401, 403):
        fix = f"Is the key in {end.key_env} right?" if end.key_env else "Name the variable with the key: `key_env`."
    elif last.status == 404 or isinstance(last, ForeignAnswer):
        fix = f"Is the address whole (it often ends in /v1), and is there a model '{end.name}'?"
    elif str(last) == "it can't be reached":
        fix = "Is the server running?"
    kind = UnansweredError if isinstance(last, Silence) else ModelError
    return kind(f"'{spec.model}' ({end.url}) gave no answer{tries}: {tale}.", fix=fix)
