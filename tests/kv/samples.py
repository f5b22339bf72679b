"""Caches and payloads of every kind, small and random, and what it takes to forge a file."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from agentflow.kv.bodies import Body, CacheBody, CodesBody, QuantizedBody, TextBody, Turn
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.payload import Fingerprint, Header, Payload
from agentflow.kv.quantize import QuantizedCache

SHAPE = ((2, 8, 8), (2, 8, 8), (1, 6, 4))


def random_entries(
    n: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, layers: Sequence[tuple[int, int, int]] = SHAPE
) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of `n` positions, per layer `(kv_heads, n, dim)`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int, dim: int) -> Tensor:
        return torch.randn(heads, n, dim, generator=generator).to(dtype)

    return [draw(h, k) for h, k, _ in layers], [draw(h, v) for h, _, v in layers]


def random_cache(n: int = 5, *, start: int = 0, biased: bool = False, **how: Any) -> KVCache:
    """A cache of `n` consecutive positions from `start`."""
    cache = KVCache.stacked(*random_entries(n, **how), start=start)
    if not biased:
        return cache
    bias = tuple(k[..., 0].float() for k in cache.keys)
    return KVCache(cache.keys, cache.values, cache.positions, cache.next_position, bias)


def closed(cache: KVCache) -> KVCache:
    """The same cache, said to have been turned to 0, 1, 2, …"""
    return replace(cache, rotary=torch.arange(len(cache)), _arena=None)


def fingerprint(cache: KVCache | QuantizedCache | None = None, **changes: Any) -> Fingerprint:
    """Of a model that the cache could come from."""
    geometry = Geometry(SHAPE) if cache is None else cache.geometry
    fields = {"model": "m", "geometry": geometry, "weights": "w", "tokenizer": "t", "rope": "r"}
    return Fingerprint(**{**fields, **changes})


def payload_of(cache: KVCache, **changes: Any) -> Payload:
    """A payload of the channel `cache`, as that channel makes it."""
    header = Header("cache", "reader", fingerprint(cache), cache.next_position, len(cache), ("none to speak of",))
    turns = (Turn("system", "Be brief."), Turn("user", 'Says "digest":"x" – ✓'))
    return Payload(header, CacheBody(cache, tuple(range(cache.next_position)), turns, **changes))


def payloads() -> dict[str, Payload]:
    """One payload of every kind, by name."""
    cache = random_cache(7)
    text = Payload(Header("text", "s"), TextBody((Turn("user", "a\ud800\n\x00"), Turn("assistant", ""))))
    codes = {
        "z": random_entries(4)[0][0].to(torch.bfloat16),
        "mask": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 5),
        "one": torch.tensor(2.5, dtype=torch.float64),
        "f8": torch.linspace(-3, 400, 5).to(torch.float8_e4m3fn),
        "i32": torch.arange(3, dtype=torch.int32),
        'a "digest":" name': torch.arange(3, dtype=torch.int8),
    }
    return {
        "text": text,
        "no-text": Payload(Header("text", ""), TextBody(())),
        "cache": payload_of(cache, head=3),
        "half": payload_of(random_cache(3, dtype=torch.float16)),
        "bfloat16": payload_of(random_cache(3, dtype=torch.bfloat16)),
        "double": payload_of(random_cache(3, dtype=torch.float64)),
        "empty-cache": payload_of(random_cache(0)),
        "compacted": payload_of(cache.select(torch.tensor([0, 3, 6]))),
        "biased": payload_of(random_cache(4, biased=True)),
        "closed": payload_of(closed(random_cache(7, biased=True).select(torch.tensor([0, 3, 6])))),
        "int8-closed": payload_of(closed(cache.select(torch.tensor([0, 1, 4, 5, 6])))).quantized(8),
        "growing": payload_of(random_cache(3).extend(*random_entries(2))),
        "int4": payload_of(random_cache(71)).quantized(4, group=16),
        "int8": payload_of(random_cache(9, biased=True)).quantized(8, group=3),
        "int4-of-sinks-only": payload_of(random_cache(2)).quantized(4),
        "int4-of-nothing": payload_of(random_cache(0)).quantized(4),
        "codes": Payload(Header("lcf", "s", fingerprint(), 9, 2), CodesBody(codes, {"rank": 3, "x": [1.5, None]})),
        "no-codes": Payload(Header("lcf", "s"), CodesBody({})),
    }


def parts_of(body: Body) -> dict[str, Any]:
    """Everything a body holds, flat and by name."""
    if isinstance(body, TextBody):
        return {"turns": body.turns}
    if isinstance(body, CodesBody):
        return {"settings": dict(body.settings), **body.tensors}
    found: dict[str, Any] = {"ids": body.token_ids, "turns": body.turns, "head": body.head}
    cache = body.cache
    found |= {"next": cache.next_position, "positions": cache.positions, "dtype": cache.dtype}
    found |= {f"bias{i}": b for i, b in enumerate(cache.bias or ())} | {"rotary": cache.rotary}
    if isinstance(body, QuantizedBody):
        small = body.cache
        sinks = small.sinks
        found |= {f"sink{i}": t for i, t in enumerate((*sinks.keys, *sinks.values, sinks.positions))}
        for i, g in enumerate((*small.keys, *small.values)):
            found |= {f"codes{i}": g.codes, f"scale{i}": g.scale, f"zero{i}": g.zero}
            found[f"how{i}"] = (g.width, g.axis, g.group, g.bits)
        return found
    return found | {f"tensor{i}": t for i, t in enumerate((*body.cache.keys, *body.cache.values))}


def same_tensor(a: Tensor, b: Tensor) -> bool:
    """Equal in shape, number format and every bit (NaN and -0 included)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def same_payload(a: Payload, b: Payload) -> bool:
    """Equal header and, bit for bit, body."""
    mine, theirs = parts_of(a.body), parts_of(b.body)
    if a.header != b.header or type(a.body) is not type(b.body) or mine.keys() != theirs.keys():
        return False
    pairs = ((mine[name], theirs[name]) for name in mine)
    return all(same_tensor(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)


def seal(
    path: Path, table: Mapping[str, Any], data: bytes = b"", content: Any = None, *, raw_content: str | None = None
) -> Path:
    """A file with a right digest, whatever it says: what a forger without the key can make."""
    zeros = "0" * 64
    inner = json.dumps(content) if raw_content is None else raw_content
    meta = {"agentflow": inner, "digest": zeros, "signature": zeros}
    text = json.dumps({"__metadata__": meta, **table}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    digest = blake3(head + data).hexdigest()
    mark = b'"digest":"'
    at = head.index(mark) + len(mark)
    path.write_bytes(head[:at] + digest.encode() + head[at + 64 :] + data)
    return path


def opened(path: Path) -> tuple[dict[str, Any], bytes, Any]:
    """A file's table without metadata, its data, and the JSON content: what `seal` takes."""
    raw = path.read_bytes()
    size = 8 + struct.unpack("<Q", raw[:8])[0]
    table = json.loads(raw[8:size])
    return table, raw[size:], json.loads(table.pop("__metadata__")["agentflow"])


def outlier_keys(heads: int, n: int, dim: int, seed: int = 0) -> Tensor:
    """Keys shaped like a real model's: a few channels of large, steady numbers; `(heads, n, dim)` float32."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(heads, n, dim, generator=generator)
    offset = torch.zeros(heads, 1, dim)
    for head in range(heads):
        offset[head, 0, torch.randperm(dim, generator=generator)[: math.ceil(dim / 16)]] = 15.0 + 10 * head
    return keys + offset
