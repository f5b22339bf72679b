"""Receivers on loopback, and raw requests to them."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agentflow.exchange.receiver import Receiver
from agentflow.exchange.ticket import Ticket
from agentflow.kv.bodies import TextBody, Turn
from agentflow.kv.payload import Header, Payload
from agentflow.kv.wire import seal_payload

TOKEN = "a-token-of-the-tests"
KEY = b"a shared key"
Open = Callable[..., Receiver]


def note(text: str, sender: str = "somebody") -> Payload:
    """A payload of a few words."""
    return Payload(Header("text", sender), TextBody((Turn("user", text),)))


def words_of(payload: Payload) -> str:
    """Its words."""
    assert isinstance(payload.body, TextBody)
    return payload.body.turns[0].content


@dataclass
class Letter:
    """A request that a test may spoil before it is sent."""

    headers: dict[str, str]
    body: bytes
    path: str = "/payloads"
    method: str = "POST"

    @classmethod
    def of(cls, payload: Payload, key: bytes | None = None, **changes: Any) -> Letter:
        """A right one."""
        digest, blocks = seal_payload(payload, key=key)
        body = b"".join(blocks)
        ticket = Ticket(**{**vars(Ticket.new(digest)), **changes})
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Length": str(len(body)), **ticket.headers(key)}
        return cls(headers, body)

    @property
    def raw(self) -> bytes:
        """As it travels."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: x", *(f"{k}: {v}" for k, v in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


@dataclass(frozen=True)
class Answer:
    """What a receiver said."""

    status: int
    text: str
    headers: Mapping[str, str]


def connect(receiver: Receiver) -> socket.socket:
    """A raw connection."""
    place = urlsplit(receiver.url)
    return socket.create_connection((place.hostname, place.port), timeout=20)


def answer_of(connection: socket.socket) -> Answer:
    """Read what comes back."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return Answer(response.status, response.read().decode(), dict(response.headers))


def ask(receiver: Receiver, raw: bytes) -> Answer:
    """Send bytes and read what comes back."""
    with connect(receiver) as connection:
        connection.sendall(raw)
        return answer_of(connection)


def stored(receiver: Receiver) -> list[str]:
    """Every file in a receiver's folder but locks and the list of nonces, half-written ones included."""
    own = {".receiver.lock", ".reader.lock", ".received"}
    return sorted(p.name for p in receiver.inbox.folder.rglob("*") if p.is_file() and p.name not in own)


@pytest.fixture
def open_receiver(tmp_path: Path) -> Iterator[Open]:
    """Start receivers that are closed when the test ends."""
    with ExitStack() as stack:

        def start(folder: str = "inbox", **how: Any) -> Receiver:
            return stack.enter_context(Receiver(tmp_path / folder, **{"token": TOKEN, **how}))

        yield start
