"""Sealed tensor files: safetensors in which every byte counts.

Layout: an ordinary safetensors file (any reader opens it) whose metadata holds three strings:

- `agentflow`: what is not a tensor, as JSON;
- `digest`: BLAKE3 of the whole file with `digest` and `signature` replaced by zeros, so that every byte counts;
- `signature`: HMAC-SHA256 of the digest under a shared key, or zeros when unsigned.

Files are written as a stream: no tensor is copied that is contiguous on the CPU, head by head, and a second thread
hashes what the first one writes. Reading maps the file: tensors are views of it until they are moved. A mapped file
must not be cut short by others; ours are replaced, never changed, so an open one stays as it was.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import mmap
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.disk import whole_file, write_blocks
from agentflow.kv.table import MAX_JSON_BYTES, blocks_of, file_head, filled, tensors_of

_ZEROS = "0" * 64
_AGAIN = "Send it again."
_WORTH_WAITING = 8 << 20  # bytes left to hash for which synchronising twice is quicker than once
_AHEAD = 256 << 20  # bytes that may be written before they are hashed: those from another device are held so long


@dataclass(frozen=True)
class Sealed:
    """A verified file: its tensors (views of the mapped file), the JSON beside them, and its digest."""

    tensors: Mapping[str, Tensor]
    content: Mapping[str, Any]
    digest: str


def seal(
    tensors: Mapping[str, Tensor], content: Mapping[str, Any], key: bytes | None = None
) -> tuple[str, list[memoryview]]:
    """The digest and the bytes, in order, of the file that `write_sealed` would write; signed when a `key` is given.

    Tensors that lie on the CPU are not copied: their blocks are views.
    """
    parts = _aligned(tensors)
    blank = _head(parts, content)
    blocks = [block for tensor in parts.values() for block in blocks_of(tensor)]
    hasher = blake3(blank, max_threads=blake3.AUTO)
    _hash(hasher, blocks)
    digest = hasher.hexdigest()
    return digest, [memoryview(_completed(blank, digest, key)), *blocks]


def write_sealed(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any], key: bytes | None) -> str:
    """Write a file, all or nothing, and return its digest; signed when a `key` is given."""
    parts = _aligned(tensors)
    blank = _head(parts, content)
    hasher = blake3(blank)
    with whole_file(path) as out, ThreadPoolExecutor(1) as second:
        write_blocks(out, [memoryview(blank)])
        waiting: deque[tuple[Future[None], int]] = deque()
        for tensor in parts.values():
            blocks = blocks_of(tensor)
            waiting.append((second.submit(_hash, hasher, blocks), tensor.nbytes))
            write_blocks(out, blocks)
            while sum(size for _, size in waiting) > _AHEAD:
                waiting.popleft()[0].result()
        if sum(size for _, size in waiting) > _WORTH_WAITING:
            os.fsync(out)  # the disk works while the rest is hashed
        for hashed, _ in waiting:
            hashed.result()
        digest = hasher.hexdigest()
        os.lseek(out, 0, os.SEEK_SET)
        write_blocks(out, [memoryview(_completed(blank, digest, key))])
    return digest


def read_sealed(path: Path, key: bytes | None) -> Sealed:
    """Map and verify a file.

    Raises:
        PayloadError: no such file, truncated, changed in any byte, or, when a `key` is given, unsigned or signed
            with another key.
        ValueError, OverflowError, LookupError, TypeError, RecursionError: it is some other file.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < 8:
                raise PayloadError("This payload is empty or cut short.", where=where, fix=_AGAIN)
            raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise PayloadError("There is no such payload file.", where=where) from None
    except (OSError, ValueError) as error:
        raise PayloadError(f"This payload can't be read: {error}.", where=where) from None
    size = 8 + int.from_bytes(raw[:8], "little")
    if size > min(len(raw), 8 + MAX_JSON_BYTES):
        raise PayloadError("This payload is cut short, or no safetensors file.", where=where, fix=_AGAIN)
    table = json.loads(raw[8:size])
    meta = table.pop("__metadata__")
    end = size + max((int(spec["data_offsets"][1]) for spec in table.values()), default=0)
    if end > len(raw):
        raise PayloadError(f"This payload is cut short: {len(raw):,} bytes of {end:,}.", where=where, fix=_AGAIN)
    _verify(raw, size, meta, where, key)
    return Sealed(tensors_of(raw, size, table), json.loads(meta["agentflow"]), meta["digest"])


def _verify(raw: mmap.mmap, size: int, meta: Mapping[str, str], where: str, key: bytes | None) -> None:
    """Digest first, so that a signature is only ever compared for a file that is whole."""
    digest, signature = meta["digest"], meta["signature"]
    blank = filled(filled(raw[:size], "digest", _ZEROS), "signature", _ZEROS)
    hasher = blake3(blank, max_threads=blake3.AUTO)
    with memoryview(raw) as view, view[size:] as data:
        hasher.update(data)
    if not hmac.compare_digest(hasher.hexdigest(), digest):
        raise PayloadError(
            "This payload was changed or damaged on its way: its digest does not match.", where=where, fix=_AGAIN
        )
    if key is not None and not hmac.compare_digest(signature, _sign(digest, key)):
        state = "is not signed" if signature == _ZEROS else "is signed with another key"
        raise PayloadError(
            f"This payload {state}, and a key is configured here.",
            where=where,
            fix="Sign it with the shared key, or don't trust it.",
        )


def _head(parts: Mapping[str, Tensor], content: Mapping[str, Any]) -> bytes:
    return file_head(parts, {"agentflow": json.dumps(content), "digest": _ZEROS, "signature": _ZEROS})


def _aligned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Wide elements first: then every tensor starts at a multiple of its element size."""
    return dict(sorted(tensors.items(), key=lambda part: -part[1].element_size()))


def _completed(blank: bytes, digest: str, key: bytes | None) -> bytes:
    return filled(filled(blank, "digest", digest), "signature", _sign(digest, key) if key else _ZEROS)


def _hash(hasher: Any, blocks: list[memoryview]) -> None:
    for block in blocks:
        hasher.update(block)


def _sign(digest: str, key: bytes) -> str:
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()
