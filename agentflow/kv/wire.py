"""Payloads as files: sealed safetensors, optionally signed (the layout is in `kv.sealed`). Nothing is unpickled."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import safe_open

from agentflow.errors import PayloadError
from agentflow.kv.bodies import CacheBody, QuantizedBody, TextBody
from agentflow.kv.encoding import decode, encode
from agentflow.kv.payload import Payload
from agentflow.kv.sealed import read_sealed, seal, write_sealed


def seal_payload(payload: Payload, *, key: bytes | None = None) -> tuple[str, list[memoryview]]:
    """The digest of a payload's file (64 hexadecimal digits, of header and body but not its stats), and its bytes.

    The blocks are views of the payload's tensors, in order: what `write_payload` would write, for whatever takes bytes.

    Args:
        key: signs it.

    Raises:
        PayloadError: the payload can't travel as it is.
    """
    return seal(*encode(payload), key)


def write_payload(payload: Payload, path: Path, *, key: bytes | None = None) -> str:
    """Write `payload` to `path`, all or nothing and synchronised, and return its digest.

    Args:
        payload: its stats stay behind.
        path: replaced when it is there; whoever has the old file open keeps it.
        key: signs the file.

    Raises:
        PayloadError: the payload can't be written as it is, or not there.
    """
    tensors, content = encode(payload)
    try:
        return write_sealed(path, tensors, content, key)
    except OSError as error:
        raise PayloadError(
            f"This payload can't be written: {error.strerror or error}.",
            where=str(path),
            fix="Make room there, or choose another folder.",
        ) from error


def read_payload(path: Path, *, key: bytes | None = None, digest: str | None = None) -> Payload:
    """Read and verify a payload file.

    Args:
        path: of the file; the payload's tensors are views of it.
        key: demands a file signed with it.
        digest: demands the payload of this digest.

    Raises:
        PayloadError: no such file, truncated, changed in any byte, of a later schema, another one than `digest`,
            or, when a `key` is given, unsigned or signed with another key.
    """
    where = str(path)
    try:
        sealed = read_sealed(path, key)
        if digest is not None and sealed.digest != digest:
            raise PayloadError(f"This is another payload ({sealed.digest[:12]}…) than {digest[:12]}….")
        return decode(sealed.tensors, sealed.content)
    except PayloadError as error:
        if error.where is not None:
            raise
        raise PayloadError(error.what, where=where, fix=error.fix) from None
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError, RecursionError, RuntimeError) as error:
        raise PayloadError(f"This is not a payload of AgentFlow ({error}).", where=where) from error


def describe(path: Path, *, key: bytes | None = None) -> dict[str, Any]:
    """What a payload file is, without its tensors or text: for `agentflow payload inspect`.

    `signed` says that it carries a signature; only with the `key` is that signature checked.
    """
    payload = read_payload(path, key=key)
    header = asdict(payload.header)
    if payload.header.fingerprint is not None:
        header["fingerprint"]["geometry"] = str(payload.header.fingerprint.geometry)
    body: dict[str, Any] = {"kind": type(payload.body).__name__, "bytes": payload.nbytes}
    if isinstance(payload.body, CacheBody | QuantizedBody):
        cache = payload.body.cache
        body |= {
            "positions": len(cache),
            "next_position": cache.next_position,
            "dtype": str(cache.dtype),
            "geometry": str(cache.geometry),
            "biased": cache.bias is not None,
        }
    if isinstance(payload.body, QuantizedBody):
        body["bits"] = payload.body.cache.bits
    if isinstance(payload.body, TextBody):
        body["turns"] = [turn.role for turn in payload.body.turns]
    with safe_open(path, "pt") as file:  # verified above
        seal = file.metadata()
    signed = set(seal["signature"]) != {"0"}
    return {
        "header": header,
        "body": body,
        "digest": seal["digest"],
        "signed": signed,
        "file_bytes": path.stat().st_size,
    }
