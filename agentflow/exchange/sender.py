"""Sending a payload to a receiver over HTTP: signed, retried, and stored once however often it had to be sent."""

from __future__ import annotations

import http.client
import json
import random
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentflow.errors import PayloadError
from agentflow.exchange.ticket import Ticket
from agentflow.kv.payload import Payload
from agentflow.kv.wire import seal_payload

ATTEMPTS = 6
FIRST_WAIT = 0.1
"""Seconds before the second attempt; each further one waits twice as long, and up to half as much again by chance."""
_BLOCK = 1 << 20
_MAX_ANSWER = 64 << 10


@dataclass(frozen=True)
class _Answer:
    status: int
    words: str = ""
    wait: float = 0.0


def send_payload(
    payload: Payload,
    url: str,
    *,
    token: str,
    key: bytes | None = None,
    attempts: int = ATTEMPTS,
    patience: float = 60.0,
) -> str:
    """Send a payload to the receiver at `url`, and return its digest when it is stored there.

    A receiver that is busy, full or not to be reached is tried again. All attempts have one nonce, so the payload is
    stored once, also where an answer was lost.

    Args:
        url: as the receiver says it: http(s)://host:port/payloads.
        key: signs payload and request.
        attempts: how often to try.
        patience: seconds to wait for the connection, for a byte to go, and for the answer.

    Raises:
        PayloadError: it can't travel, or the receiver can't be reached or refuses it; says why.
    """
    where = _Place.of(url)
    digest, blocks = seal_payload(payload, key=key)
    ticket, unsure = Ticket.new(digest), False
    for attempt in range(attempts):
        ticket = ticket.renewed()
        try:
            answer = _post(where, blocks, {"Authorization": f"Bearer {token}", **ticket.headers(key)}, patience)
        except (OSError, http.client.HTTPException) as error:
            answer, unsure = _Answer(0, f"it can't be reached: {error or type(error).__name__}"), True
        if answer.status == 201 or (answer.status == 409 and unsure):
            return digest
        if answer.status not in (0, 503) or attempt + 1 == attempts:
            break
        time.sleep(max(answer.wait, FIRST_WAIT * 2**attempt) * random.uniform(1, 1.5))  # noqa: S311 - no secret
    tried = f" (after {attempts} attempts)" if answer.status in (0, 503) else ""
    status = f" ({answer.status})" if answer.status else ""
    raise PayloadError(f"The receiver did not take this payload{status}: {answer.words.rstrip('.')}{tried}.", where=url)


@dataclass(frozen=True)
class _Place:
    """Where a receiver is."""

    is_secure: bool
    host: str
    port: int | None
    path: str

    @classmethod
    def of(cls, url: str) -> _Place:
        try:
            parts = urlsplit(url)
            if parts.scheme in ("http", "https") and parts.hostname and not (parts.username or parts.password):
                return cls(parts.scheme == "https", parts.hostname, parts.port, parts.path or "/payloads")
        except ValueError:
            pass
        raise PayloadError("This is no address of a receiver.", where=url, fix="Write http://HOST:PORT/payloads.")


def _post(where: _Place, blocks: Sequence[memoryview], headers: Mapping[str, str], patience: float) -> _Answer:
    """Send a request, and stop talking as soon as there is an answer."""
    kind = http.client.HTTPSConnection if where.is_secure else http.client.HTTPConnection
    connection = kind(where.host, where.port, timeout=patience)
    try:
        connection.connect()
        connection.putrequest("POST", where.path)
        for name, value in {**headers, "Content-Length": str(sum(map(len, blocks))), "Connection": "close"}.items():
            connection.putheader(name, value)
        try:
            connection.endheaders()
            _send_body(connection, blocks)
        except ConnectionError:
            pass  # it may have been refused half-way: the answer says why, if there is one
        response = connection.getresponse()
        return _read(response)
    finally:
        connection.close()


def _send_body(connection: http.client.HTTPConnection, blocks: Sequence[memoryview]) -> None:
    is_plain = type(connection.sock) is socket.socket  # over TLS something may come that is no answer
    with selectors.DefaultSelector() as heard:
        heard.register(connection.sock, selectors.EVENT_READ)
        for block in blocks:
            for start in range(0, len(block), _BLOCK):
                if is_plain and heard.select(0):
                    return  # refused
                connection.send(block[start : start + _BLOCK])


def _read(response: http.client.HTTPResponse) -> _Answer:
    raw = response.read(_MAX_ANSWER)
    try:
        words = str(json.loads(raw)["error"])[:500]
    except (ValueError, LookupError, TypeError):
        words = response.reason
    retry = response.headers.get("Retry-After") or ""
    return _Answer(response.status, words, min(float(retry), 60.0) if retry.isdigit() else 0.0)
