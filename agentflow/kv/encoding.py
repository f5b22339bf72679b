"""Payloads as named tensors and JSON, and back; what comes back is checked before it can reach a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.bodies import Body, CacheBody, CodesBody, QuantizedBody, TextBody, turns_of
from agentflow.kv.cache import KVCache
from agentflow.kv.packing import Grouped
from agentflow.kv.payload import SCHEMA_VERSION, Fingerprint, Header, Payload
from agentflow.kv.quantize import QuantizedCache

_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


def encode(payload: Payload) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A payload as tensors by name, and JSON for the rest.

    Raises:
        PayloadError: a cache whose tokens or positions no receiver would accept.
    """
    body = payload.body
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any]
    if isinstance(body, TextBody):
        rest = {"kind": "text", "turns": [asdict(t) for t in body.turns]}
    elif isinstance(body, CodesBody):
        rest = {"kind": "codes", "settings": dict(body.settings)}
        tensors |= {f"codes.{name}": t for name, t in body.tensors.items()}
    else:
        cache = body.cache
        rest = {
            "kind": "cache",
            "turns": [asdict(t) for t in body.turns],
            "head": body.head,
            "layers": len(cache.keys),
            "next_position": cache.next_position,
            "biased": cache.bias is not None,
        }
        tensors["token_ids"] = torch.tensor(body.token_ids, dtype=torch.int64)
        tensors["positions"] = cache.positions
        if cache.rotary is not None:
            tensors["rotary"] = cache.rotary
        tensors |= _numbered("bias", cache.bias or ())
        if isinstance(cache, KVCache):
            tensors |= _numbered("key", cache.keys) | _numbered("value", cache.values)
        else:
            dtype = str(cache.dtype).removeprefix("torch.")
            group = cache.keys[0].group
            rest |= {"kind": "quantized", "bits": cache.bits, "group": group, "dtype": dtype, "sinks": len(cache.sinks)}
            tensors |= _numbered("sinks.key", cache.sinks.keys) | _numbered("sinks.value", cache.sinks.values)
            tensors |= _grouped_tensors("key", cache.keys) | _grouped_tensors("value", cache.values)
        try:
            _check_tokens(cache.positions, cache.next_position, tensors["token_ids"], cache.rotary)
        except ValueError as error:
            raise PayloadError(f"The payload from '{payload.header.sender}' can't travel: {error}.") from None
    return tensors, {"header": asdict(payload.header), "body": rest}


def decode(tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> Payload:
    """The payload that was encoded.

    Raises:
        PayloadError: a later schema, or tensors that are no cache.
        ValueError, OverflowError, LookupError, TypeError, AttributeError: the content is none that `encode` gives.
    """
    header = _header(content["header"])
    rest = content["body"]
    body: Body
    if rest["kind"] == "text":
        body = TextBody(turns_of(rest["turns"]))
    elif rest["kind"] == "codes":
        body = CodesBody({name.removeprefix("codes."): t for name, t in tensors.items()}, dict(rest["settings"]))
    elif rest["kind"] in ("cache", "quantized"):
        positions, ids = tensors["positions"], tensors["token_ids"]
        _check_tokens(positions, int(rest["next_position"]), ids, tensors.get("rotary"))
        cache = _cache(tensors, rest) if rest["kind"] == "cache" else _quantized(tensors, rest)
        tokens, turns, head = tuple(ids.tolist()), turns_of(rest["turns"]), int(rest["head"])
        if not 0 <= head <= len(tokens):
            raise ValueError(f"its conversation begins at token {head} of {len(tokens)}")
        if isinstance(cache, KVCache):
            body = CacheBody(cache, tokens, turns, head)
        else:
            body = QuantizedBody(cache, tokens, turns, head)
    else:
        raise ValueError(f"unknown body {rest['kind']!r}")
    return Payload(header, body)


def _header(raw: Mapping[str, Any]) -> Header:
    if raw["schema"] != SCHEMA_VERSION:
        raise PayloadError(
            f"This payload has the schema {raw['schema']}; this version reads {SCHEMA_VERSION}.",
            fix="Update AgentFlow at the older end.",
        )
    fingerprint = None if raw["fingerprint"] is None else Fingerprint.of(raw["fingerprint"])
    header = Header(**{**raw, "fingerprint": fingerprint, "losses": tuple(raw["losses"])})
    texts, counts = [header.channel, header.sender, *header.losses], [header.tokens, header.kept]
    if not all(isinstance(t, str) for t in texts) or not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError("its header has fields of other types")
    return header


def _cache(tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> KVCache:
    n = int(rest["layers"])
    bias = _take(tensors, "bias", n) if rest["biased"] else None
    keys, values = _take(tensors, "key", n), _take(tensors, "value", n)
    if not all(t.is_floating_point() for t in (*keys, *values, *(bias or ()))):
        raise ValueError("its keys and values are no real numbers")
    return KVCache(keys, values, tensors["positions"], int(rest["next_position"]), bias, tensors.get("rotary"))


def _quantized(tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> QuantizedCache:
    n, sinks, positions = int(rest["layers"]), int(rest["sinks"]), tensors["positions"]
    exact = {f"layers.{i}.{part}": tensors[f"layers.{i}.sinks.{part}"] for i in range(n) for part in ("key", "value")}
    end = int(positions[sinks]) if sinks < len(positions) else int(rest["next_position"])
    first = _cache({**exact, "positions": positions[:sinks]}, {"layers": n, "next_position": end, "biased": False})
    cache = QuantizedCache(
        first,
        tuple(_grouped(tensors, f"layers.{i}.key", first.keys[i], rest, -2) for i in range(n)),
        tuple(_grouped(tensors, f"layers.{i}.value", first.values[i], rest, -1) for i in range(n)),
        positions,
        int(rest["next_position"]),
        _take(tensors, "bias", n) if rest["biased"] else None,
        tensors.get("rotary"),
        _DTYPES[rest["dtype"]],
    )
    for like, key, value in zip(first.keys, cache.keys, cache.values, strict=True):
        for part in (key, value):
            part.check((like.shape[0], len(positions) - sinks))
    return cache


def _grouped(tensors: Mapping[str, Tensor], name: str, like: Tensor, rest: Mapping[str, Any], axis: Any) -> Grouped:
    codes, scale, zero = (tensors[f"{name}.{part}"] for part in ("codes", "scale", "zero"))
    return Grouped(codes, scale, zero, like.shape[-1], axis, int(rest["group"]), rest["bits"])


def _grouped_tensors(part: str, layers: Iterable[Grouped]) -> dict[str, Tensor]:
    found = {}
    for layer, grouped in enumerate(layers):
        for name in ("codes", "scale", "zero"):
            found[f"layers.{layer}.{part}.{name}"] = getattr(grouped, name)
    return found


def _numbered(part: str, layers: Iterable[Tensor]) -> dict[str, Tensor]:
    return {f"layers.{layer}.{part}": tensor for layer, tensor in enumerate(layers)}


def _take(tensors: Mapping[str, Tensor], part: str, layers: int) -> tuple[Tensor, ...]:
    return tuple(tensors[f"layers.{layer}.{part}"] for layer in range(layers))


def _check_tokens(positions: Tensor, next_position: int, token_ids: Tensor, rotary: Tensor | None) -> None:
    """Refuse positions and tokens that no sender of ours writes."""
    if positions.dtype != torch.int64 or token_ids.dtype != torch.int64 or positions.ndim != 1:
        raise ValueError("its positions or tokens are no whole numbers")
    ends = positions.new_tensor([-1]), positions.new_tensor([next_position])
    if not bool((torch.cat([ends[0], positions, ends[1]]).diff() > 0).all()):
        raise ValueError("its positions are not increasing")
    if token_ids.shape != (next_position,):
        raise ValueError(f"it has {token_ids.numel()} tokens for {next_position} positions")
    if rotary is None:
        return
    if rotary.dtype != torch.int64 or rotary.shape != positions.shape:
        raise ValueError("its rotary positions are others than its positions")
    if not bool((torch.cat([ends[0], rotary]).diff() > 0).all()):
        raise ValueError("its rotary positions are not increasing")
