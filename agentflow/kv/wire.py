"""Payloads as files: safetensors, sealed and optionally signed.

Layout: an ordinary safetensors file (any reader opens it) whose metadata holds three strings:

- `agentflow`: the header and what is not a tensor, as JSON;
- `digest`: BLAKE3 of the whole file with `digest` and `signature` replaced by zeros, so that every byte counts;
- `signature`: HMAC-SHA256 of the digest under a shared key, or zeros when unsigned.

Reading maps the file: tensors are views of it until they are moved. Nothing is unpickled, ever.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.cache import Geometry, KVCache
from agentflow.kv.payload import (
    SCHEMA_VERSION,
    Body,
    CacheBody,
    CodesBody,
    Fingerprint,
    Header,
    Payload,
    TextBody,
    turns_of,
)

MAX_JSON_BYTES = 64 << 20
_ZEROS = "0" * 64
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_payload(payload: Payload, path: Path, *, key: bytes | None = None) -> str:
    """Write `payload` to `path`, all or nothing, and return its digest; signed when a `key` is given."""
    parts, meta = _disassemble(payload)
    parts = dict(sorted(parts.items(), key=lambda part: -part[1].element_size()))  # keeps every tensor aligned
    head = _file_head(parts, {"agentflow": json.dumps(meta), "digest": _ZEROS, "signature": _ZEROS})
    views = [_bytes_of(t) for t in parts.values()]
    hasher = blake3(head, max_threads=blake3.AUTO)
    for view in views:
        hasher.update(view)
    digest = hasher.hexdigest()
    head = _fill(_fill(head, "digest", digest), "signature", _sign(digest, key) if key else _ZEROS)
    with _whole_file(path) as out:
        for block in (head, *views):
            out.write(block)
    return digest


def read_payload(path: Path, *, key: bytes | None = None) -> Payload:
    """Read and verify a payload file.

    Raises:
        PayloadError: no such file, truncated, changed in any byte, of a later schema, or, when a `key` is
            given, unsigned or signed with another key.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < 8:
                raise PayloadError("This payload is empty or cut short.", where=where, fix="Send it again.")
            raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise PayloadError("There is no such payload file.", where=where) from None
    except (OSError, ValueError) as error:
        raise PayloadError(f"This payload can't be read: {error}.", where=where) from None
    try:
        return _read(raw, where, key)
    except PayloadError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, RuntimeError) as error:
        raise PayloadError(f"This is not a payload of AgentFlow ({error}).", where=where) from error


def _read(raw: mmap.mmap, where: str, key: bytes | None) -> Payload:
    (size,) = struct.unpack("<Q", raw[:8])
    if size > min(len(raw) - 8, MAX_JSON_BYTES):
        raise PayloadError("This payload is cut short, or no safetensors file.", where=where, fix="Send it again.")
    head = raw[: 8 + size]
    table = json.loads(head[8:])
    meta = table.pop("__metadata__")
    digest, signature = meta["digest"], meta["signature"]
    end = max((spec["data_offsets"][1] for spec in table.values()), default=0)
    if 8 + size + end != len(raw):
        raise PayloadError(
            f"This payload is cut short: {len(raw):,} bytes of {8 + size + end:,}.",
            where=where,
            fix="Send it again.",
        )
    blank = _fill(_fill(head, "digest", _ZEROS), "signature", _ZEROS)
    data = memoryview(raw)[8 + size :]
    if not hmac.compare_digest(blake3(blank, max_threads=blake3.AUTO).update(data).hexdigest(), digest):
        raise PayloadError(
            "This payload was changed or damaged on its way: its digest does not match.",
            where=where,
            fix="Send it again.",
        )
    if key is not None and not hmac.compare_digest(signature, _sign(digest, key)):
        state = "is not signed" if signature == _ZEROS else "is signed with another key"
        raise PayloadError(
            f"This payload {state}, and a key is configured here.",
            where=where,
            fix="Sign it with the shared key, or don't trust it.",
        )
    content = json.loads(meta["agentflow"])
    schema = content["header"]["schema"]
    if schema != SCHEMA_VERSION:
        raise PayloadError(
            f"This payload has the schema {schema}; this version reads {SCHEMA_VERSION}.",
            where=where,
            fix="Update AgentFlow at the older end.",
        )
    return _assemble({name: _tensor(raw, 8 + size, spec) for name, spec in table.items()}, content)


def describe(path: Path, *, key: bytes | None = None) -> dict[str, Any]:
    """What a payload file is, without its tensors or text: for `agentflow payload inspect`."""
    payload = read_payload(path, key=key)
    header = asdict(payload.header)
    body: dict[str, Any] = {"kind": type(payload.body).__name__, "bytes": payload.nbytes}
    if isinstance(payload.body, CacheBody):
        cache = payload.body.cache
        body |= {
            "positions": len(cache),
            "next_position": cache.next_position,
            "dtype": str(cache.dtype),
            "geometry": str(cache.geometry),
            "biased": cache.bias is not None,
        }
        header["fingerprint"]["geometry"] = str(cache.geometry)
    if isinstance(payload.body, TextBody):
        body["turns"] = [turn.role for turn in payload.body.turns]
    return {"header": header, "body": body, "file_bytes": path.stat().st_size}


def _disassemble(payload: Payload) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A payload as tensors by name, and JSON for the rest."""
    body = payload.body
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any]
    if isinstance(body, TextBody):
        rest = {"kind": "text", "turns": [asdict(t) for t in body.turns]}
    elif isinstance(body, CacheBody):
        cache = body.cache
        rest = {
            "kind": "cache",
            "turns": [asdict(t) for t in body.turns],
            "layers": len(cache.keys),
            "next_position": cache.next_position,
            "biased": cache.bias is not None,
        }
        tensors["token_ids"] = torch.tensor(body.token_ids, dtype=torch.int64)
        tensors["positions"] = cache.positions
        for layer, (k, v) in enumerate(zip(cache.keys, cache.values, strict=True)):
            tensors[f"layers.{layer}.key"], tensors[f"layers.{layer}.value"] = k, v
        for layer, b in enumerate(cache.bias or ()):
            tensors[f"layers.{layer}.bias"] = b
    else:
        rest = {"kind": "codes", "settings": dict(body.settings)}
        tensors |= {f"codes.{name}": t for name, t in body.tensors.items()}
    return tensors, {"header": asdict(payload.header), "body": rest}


def _assemble(tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> Payload:
    raw, rest = dict(content["header"]), content["body"]
    if raw["fingerprint"] is not None:
        layers = tuple(tuple(int(n) for n in layer) for layer in raw["fingerprint"]["geometry"]["layers"])
        raw["fingerprint"] = Fingerprint(**{**raw["fingerprint"], "geometry": Geometry(layers)})  # type: ignore[arg-type]
    header = Header(**{**raw, "losses": tuple(raw["losses"])})
    body: Body
    if rest["kind"] == "text":
        body = TextBody(turns_of(rest["turns"]))
    elif rest["kind"] == "cache":
        n = range(int(rest["layers"]))
        bias = tuple(tensors[f"layers.{i}.bias"] for i in n) if rest["biased"] else None
        cache = KVCache(
            tuple(tensors[f"layers.{i}.key"] for i in n),
            tuple(tensors[f"layers.{i}.value"] for i in n),
            tensors["positions"],
            int(rest["next_position"]),
            bias,
        )
        _check_positions(cache, tensors["token_ids"])
        body = CacheBody(cache, tuple(tensors["token_ids"].tolist()), turns_of(rest["turns"]))
    elif rest["kind"] == "codes":
        codes = {name.removeprefix("codes."): t for name, t in tensors.items()}
        body = CodesBody(codes, rest["settings"])
    else:
        raise ValueError(f"unknown body {rest['kind']!r}")
    return Payload(header, body)


def _check_positions(cache: KVCache, token_ids: Tensor) -> None:
    """Refuse positions that no sender of ours writes, before they reach a model."""
    positions = torch.cat(
        [cache.positions.new_tensor([-1]), cache.positions, cache.positions.new_tensor([cache.next_position])]
    )
    if positions.dtype != torch.int64 or not bool((positions.diff() > 0).all()):
        raise ValueError("its positions are not increasing whole numbers")
    if token_ids.shape != (cache.next_position,):
        raise ValueError(f"it has {token_ids.numel()} tokens for {cache.next_position} positions")


def _file_head(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> bytes:
    """The safetensors head: eight bytes of length, then the JSON table, padded to eight bytes."""
    table: dict[str, Any] = {"__metadata__": meta}
    offset = 0
    for name, t in tensors.items():
        end = offset + t.numel() * t.element_size()
        table[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _fill(head: bytes, name: str, value: str) -> bytes:
    """The head with the 64 characters of `name` replaced; their place is the same in every file."""
    mark = f'"{name}":"'.encode()
    at = head.index(mark) + len(mark)  # inside a JSON string the quotes would be escaped
    return head[:at] + value.encode() + head[at + 64 :]


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw: Any = flat.view(torch.uint8).numpy()
    return memoryview(raw) if flat.numel() else memoryview(b"")


def _tensor(raw: mmap.mmap, base: int, spec: Mapping[str, Any]) -> Tensor:
    start, end = spec["data_offsets"]
    dtype, shape = _DTYPES[spec["dtype"]], [int(n) for n in spec["shape"]]
    count = (end - start) // dtype.itemsize
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype, count=count, offset=base + start).reshape(shape)


def _sign(digest: str, key: bytes) -> str:
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


@contextmanager
def _whole_file(path: Path) -> Iterator[Any]:
    """A file that appears under its name only when it is complete and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
