"""One request to a receiver: its head is checked, its body read, verified and stored; or a status says why not."""

from __future__ import annotations

import hmac
import io
import json
import logging
import re
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

from agentflow.errors import PayloadError
from agentflow.exchange.inbox import InboxFullError
from agentflow.exchange.ticket import WINDOW, Ticket
from agentflow.exchange.wires import Refused, Wire, let_go

PATH = "/payloads"
MAX_HEAD = 16 << 10
AGAIN = {"Retry-After": "1"}

log = logging.getLogger(__name__)


class Handler(BaseHTTPRequestHandler):
    """Answers one request, and ends the connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "agentflow", ""

    def setup(self) -> None:
        """Read through a `Wire`."""
        super().setup()
        self.owner: Any = cast(Any, self.server).owner
        self.limits = self.owner.limits
        self.request_version, self.requestline, self.command = self.protocol_version, "", ""
        self._wire = Wire(self.connection, self.limits.patience, MAX_HEAD)
        self.rfile = io.BufferedReader(self._wire, 1 << 16)

    def handle(self) -> None:
        """Read, answer, and let go."""
        try:
            self.raw_requestline = self.rfile.readline(MAX_HEAD + 1)
            if not self.raw_requestline or not self.parse_request():  # which answers for itself
                return
            path, told = self._receive()
        except Refused as refused:
            self._refuse(refused)
        except TimeoutError:
            self._refuse(Refused(408, "This request took too long."))
        except ConnectionError:
            log.info("a sender went away")
        except PayloadError as error:
            self._refuse(Refused(422, str(error)))
        except OSError as error:
            log.warning("a payload could not be stored: %s", error)
            self._refuse(Refused(507, "The payload can't be stored here."))
        else:
            self._say(201, told)
            self.owner.on_stored(path)

    def _receive(self) -> tuple[Path, dict[str, Any]]:
        """Take the payload of a request; where it is now, and what the sender is told."""
        self._check_sender()
        size = self._size()
        try:
            ticket = Ticket.of(cast(Any, self.headers))
        except ValueError as error:
            raise Refused(400, str(error)) from None
        key = self.owner.key
        if key is not None and not ticket.is_signed(cast(Any, self.headers), key):
            raise Refused(403, "This request is not signed with the shared key.")
        if not ticket.is_current:
            raise Refused(403, f"This ticket is more than {WINDOW} s old, or of a clock that runs ahead.")
        state = self.owner.received.begin(ticket.nonce)
        if state == "stored":
            raise Refused(409, "A payload with this nonce was stored before.")
        if state:
            raise Refused(503, "A payload with this nonce is on its way.", **AGAIN)
        try:
            return self._store(ticket, size), {"digest": ticket.digest, "bytes": size}
        finally:
            self.owner.received.end(ticket.nonce)

    def _check_sender(self) -> None:
        given = self.headers.get("Authorization") or ""
        expected = f"Bearer {self.owner.token}"
        if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
            raise Refused(401, "The token is missing or wrong.", **{"WWW-Authenticate": "Bearer"})
        if self.path != PATH:
            raise Refused(404, f"There is nothing here but {PATH}.")
        if self.command != "POST":
            raise Refused(405, "Payloads are sent with POST.", Allow="POST")

    def _size(self) -> int:
        lengths = self.headers.get_all("Content-Length") or []
        if not lengths or "Transfer-Encoding" in self.headers:
            raise Refused(411, "The length of the payload must be said: Content-Length, and no Transfer-Encoding.")
        if len(lengths) > 1 or not re.fullmatch(r"\d{1,15}", lengths[0], re.ASCII):
            raise Refused(400, "Content-Length must be one whole number.")
        size = int(lengths[0])
        if size > self.limits.max_bytes:
            raise Refused(413, f"This payload has {size:,} bytes; {self.limits.max_bytes:,} are allowed.")
        return size

    def _store(self, ticket: Ticket, size: int) -> Path:
        if (self.headers.get("Expect") or "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._wire.expect(self.limits.patience + size / self.limits.least_rate)
        try:
            path: Path = self.owner.inbox.take(self.rfile, size, mark=ticket.nonce, digest=ticket.digest)
        except InboxFullError:
            raise Refused(503, "The inbox is full.", **AGAIN) from None
        self.owner.received.stored(ticket)
        return path

    def _refuse(self, refused: Refused) -> None:
        log.info("refused with %d: %s", refused.status, refused.words)
        self._say(refused.status, {"error": refused.words}, refused.headers)
        let_go(self.connection)

    def _say(self, status: int, told: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(told).encode() + b"\n"
        fixed = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        self.connection.settimeout(self.limits.patience)
        self.request_version = self.protocol_version  # also to who spoke none, or an older one
        with suppress(OSError):  # nobody is there any more
            self.send_response_only(status)
            for name, value in {**fixed, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    # -- what the library would do by itself ------------------------------------------------------------

    def handle_expect_100(self) -> bool:
        """Say nothing yet: a body is asked for once the head is known to be right."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of a request that is no HTTP; what the library says of it may quote the sender, so it is left out."""
        del message, explain
        self._refuse(Refused(code, "This is not a request that can be read."))
