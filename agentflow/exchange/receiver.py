"""A small HTTP server that takes payloads into an inbox, on loopback unless it is told otherwise.

One request a connection: `POST /payloads` with a token, a ticket (`exchange.ticket`) and the file of `kv.wire` as its
body. Everything a request says is checked before its body is read, and the body before it is stored.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from agentflow.errors import PayloadError
from agentflow.exchange.handler import Handler
from agentflow.exchange.inbox import CAPACITY, Inbox, held
from agentflow.exchange.received import Received
from agentflow.exchange.streams import MAX_BYTES
from agentflow.kv.payload import Payload

log = logging.getLogger(__name__)

LEAST_TOKEN = 16
"""Characters; `openssl rand -hex 32` gives 64."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a receiver allows.

    Attributes:
        max_bytes: of one payload.
        capacity: bytes of all payloads that wait to be read.
        connections: at a time; who comes above them is told to try again.
        patience: seconds for a request's head, and between two bytes.
        least_rate: bytes a second; a body may take `patience` seconds and its length by this rate.
    """

    max_bytes: int = MAX_BYTES
    capacity: int = CAPACITY
    connections: int = 32
    patience: float = 10.0
    least_rate: float = 65_536.0


class Receiver:
    """A running receiver; iterating gives its payloads in the order in which they came.

    >>> with Receiver(Path("inbox"), token=token) as receiver:
    ...     for payload in receiver:
    ...         context = channel.receive(payload, engine)

    Args:
        folder: of the inbox (see `Inbox`); one receiver at a time.
        token: that senders must show; at least 16 characters.
        key: demands that requests and payloads are signed with it.
        host, port: where to listen; port 0 takes a free one. Beyond loopback a key is needed.
        on_stored: told of every payload that was stored, on the thread that stored it.

    Raises:
        PayloadError: a weak token, no key beyond loopback, an address or a folder that can't be had.
    """

    def __init__(
        self,
        folder: Path,
        *,
        token: str,
        key: bytes | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        on_stored: Callable[[Path], None] = lambda path: None,
    ) -> None:
        self.limits, self.token, self.key, self.on_stored = limits or Limits(), token, key, on_stored
        _check(token, key, host)
        self.inbox = Inbox(folder, key=key, capacity=self.limits.capacity)
        with ExitStack() as stack:
            stack.enter_context(held(folder / ".receiver.lock", "receives into"))
            self.inbox.clear_parts()
            self.received = Received(folder / ".received", self.inbox.marks())
            stack.callback(self.received.close)
            self._server = stack.enter_context(_listening(self, host, port))
            self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="agentflow-receiver")
            self._thread.start()
            stack.callback(self._stop)
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        """Where senders send."""
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/payloads"

    def payloads(self, timeout: float | None = None) -> Iterator[Payload]:
        """See `Inbox.payloads`; ends when the receiver is closed and all are read."""
        return self.inbox.payloads(timeout)

    def __iter__(self) -> Iterator[Payload]:
        return self.payloads()

    def close(self) -> None:
        """Stop listening. Requests whose body is still on its way are broken off, and nothing of them stays."""
        self._stack.close()
        self.inbox.close()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()


class _Server(socketserver.ThreadingTCPServer):
    """A bounded number of connections, each on a thread of its own."""

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, owner: Receiver, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.owner, self.address_family = owner, family
        self._slots = threading.Semaphore(owner.limits.connections)
        self._open: set[socket.socket] = set()
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread, or say that there are too many."""
        if not self._slots.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(1.0)
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of an answer that has failed by a fault of ours; the others are not concerned."""
        del request, client_address
        log.exception("a request could not be answered")

    def hang_up(self) -> None:
        """Hear no more; who is being answered still gets the answer."""
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RD)


def _listening(owner: Receiver, host: str, port: int) -> _Server:
    try:
        if not 0 <= port < 1 << 16:
            raise OSError("there is no such port")
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _Server(owner, family, (str(address[0]), int(address[1])))
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PayloadError(f"It is not possible to listen here: {reason}.", where=f"{host}:{port}") from None


def _check(token: str, key: bytes | None, host: str) -> None:
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise PayloadError(
            f"A token has at least {LEAST_TOKEN} visible ASCII characters.", fix="Make one: openssl rand -hex 32."
        )
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if key is None and not is_local:
        raise PayloadError(
            "Beyond loopback, payloads must be signed.",
            where=host,
            fix="Give both ends the same key, or listen on 127.0.0.1 behind a tunnel.",
        )
