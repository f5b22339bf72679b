"""The ticket of a request: which payload, when, and that it is sent once; signed when there is a shared key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

WINDOW = 300
"""Seconds that the clocks of sender and receiver may be apart, and that a ticket can be used."""

TIME, NONCE, DIGEST, SIGNATURE = "AgentFlow-Time", "AgentFlow-Nonce", "AgentFlow-Digest", "AgentFlow-Signature"
_FORMS = {TIME: r"\d{1,12}", NONCE: "[0-9a-f]{32}", DIGEST: "[0-9a-f]{64}"}


@dataclass(frozen=True)
class Ticket:
    """What a sender says of a payload before it sends it.

    Attributes:
        time: seconds since 1970.
        nonce: 32 random hexadecimal digits; tells a second attempt from a second payload.
        digest: of the payload's file.
    """

    time: int
    nonce: str
    digest: str

    @classmethod
    def new(cls, digest: str) -> Ticket:
        """A ticket for now."""
        return cls(int(time.time()), secrets.token_hex(16), digest)

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Ticket:
        """Read the headers of a request.

        Raises:
            ValueError: one is missing or malformed; says which.
        """
        found = {}
        for name, form in _FORMS.items():
            found[name] = headers.get(name) or ""
            if not re.fullmatch(form, found[name], re.ASCII):
                raise ValueError(f"The header {name} is missing or malformed.")
        return cls(int(found[TIME]), found[NONCE], found[DIGEST])

    def renewed(self) -> Ticket:
        """The ticket of another attempt to send the same payload."""
        return replace(self, time=int(time.time()))

    def headers(self, key: bytes | None) -> dict[str, str]:
        """As a request carries it."""
        found = {TIME: str(self.time), NONCE: self.nonce, DIGEST: self.digest}
        return found if key is None else {**found, SIGNATURE: self.signature(key)}

    def signature(self, key: bytes) -> str:
        """HMAC-SHA256 of time, nonce and digest, one a line, as hexadecimal digits."""
        text = f"{self.time}\n{self.nonce}\n{self.digest}"
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    def is_signed(self, headers: Mapping[str, str], key: bytes) -> bool:
        """Whether the headers hold its signature."""
        given = headers.get(SIGNATURE) or ""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.signature(key).encode())

    @property
    def is_current(self) -> bool:
        """Whether it may be used now."""
        return abs(time.time() - self.time) <= WINDOW
