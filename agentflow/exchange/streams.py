"""Payloads through pipes, one behind the other: the head of each file says where it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentflow.errors import PayloadError
from agentflow.exchange.inbox import Inbox
from agentflow.kv.table import MAX_JSON_BYTES

MAX_BYTES = 1 << 30


def take_all(stream: BinaryIO, inbox: Inbox, *, max_bytes: int = MAX_BYTES) -> Iterator[Path]:
    """Store all payloads of a stream, each when it is asked for.

    Args:
        max_bytes: of one payload.

    Raises:
        PayloadError: one is too large, cut short, or none; those before it are stored.
    """
    while start := stream.read(8):
        more = _head_size(start)
        _allow(more, max_bytes)
        head = start + stream.read(more)
        size = _size(head)
        _allow(size, max_bytes)
        yield inbox.take(_Joined(head, stream), size)


def _allow(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise PayloadError(
            f"This payload has {size:,} bytes or more; {max_bytes:,} are allowed.", fix="Allow more, or send less."
        )


def _head_size(start: bytes) -> int:
    size = int.from_bytes(start, "little")
    if len(start) < 8 or size > MAX_JSON_BYTES:
        raise PayloadError("This is no payload: it doesn't begin as a safetensors file does.")
    return size


def _size(head: bytes) -> int:
    """Bytes of the whole file, as its table has it."""
    try:
        table = json.loads(head[8:])
        ends = [spec["data_offsets"][1] for name, spec in table.items() if name != "__metadata__"]
        if not all(type(end) is int and end >= 0 for end in ends):
            raise ValueError("its sizes are no whole numbers")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise PayloadError(f"This is not a payload of AgentFlow ({error}).") from None
    return len(head) + max(ends, default=0)


class _Joined:
    """What was read already, then the stream."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._parts: list[BinaryIO] = [io.BytesIO(head), stream]

    def readinto(self, buffer: memoryview, /) -> int | None:
        count: int = 0
        while self._parts and not count:
            data = self._parts[0].read(len(buffer))
            count = len(data)
            buffer[:count] = data
            if not count:
                self._parts.pop(0)
        return count
