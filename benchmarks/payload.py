"""Payload files: a 150 MB cache written and read back, against the plain file, int4 and int8, and `avp`.

Both sides sync to disk. Reading verifies every byte and maps the tensors; the plain side reads all bytes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from agentflow.kv.bodies import CacheBody, Turn
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Header, Payload
from agentflow.kv.wire import read_payload, write_payload
from agentflow.models.engine import Engine
from agentflow.models.loading import geometry_of
from benchmarks.common import arguments, engine, interleaved, paired, ratio, report

POSITIONS = 3250  # of 46,080 bytes each: 150 MB
SHORT = 2048


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "")
    ours = engine(chosen.model)
    payload = random_payload(ours, POSITIONS)
    folder = Path(tempfile.mkdtemp(prefix="agentflow-bench-"))
    ours_file, plain_file = folder / "payload.safetensors", folder / "plain.bin"
    write_payload(payload, ours_file)
    blob = ours_file.read_bytes()
    ways: dict[str, Any] = {
        "payload": lambda: (write_payload(payload, ours_file), read_payload(ours_file)),
        "plain file": lambda: plain(blob, plain_file),
    }
    peer = avp_round_trip(payload)
    try:
        seconds = interleaved(9 if chosen.quick else 25, ways)
        if peer is not None:  # apart: its large writes leave the disk busy for whoever comes next
            beside = interleaved(
                5 if chosen.quick else 15,
                {"payload beside avp": ways["payload"], "avp": lambda: peer(folder / "avp.bin")},
            )
            seconds |= beside
        half = random_payload(ours, SHORT, torch.bfloat16)
        sizes = {bits: written(half.quantized(bits), folder) for bits in (4, 8)}
        plain_bytes = written(half, folder)
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    figures = {
        "roundtrip_over_plain_file": 1 / paired(seconds["payload"], seconds["plain file"]),
        "int4_over_bf16_bytes": sizes[4] / plain_bytes,
        "int8_over_bf16_bytes": sizes[8] / plain_bytes,
        "avp_over_ours": ratio(seconds["avp"], seconds["payload beside avp"]) if "avp" in seconds else None,
    }
    report("Payload: write and read back", seconds, figures, MB=round(len(blob) / 1e6, 1), model=chosen.model)


def random_payload(ours: Engine, length: int, dtype: torch.dtype = torch.float32) -> Payload:
    """A payload of the model's cache shapes, with random numbers."""
    torch.manual_seed(0)
    shapes = geometry_of(ours.loaded.model.config).layers
    keys = [torch.randn(heads, length, k).to(dtype) for heads, k, _ in shapes]
    values = [torch.randn(heads, length, v).to(dtype) for heads, _, v in shapes]
    cache = KVCache.stacked(keys, values)
    body = CacheBody(cache, tuple(range(length)), (Turn("user", "a trajectory"),))
    return Payload(Header("cache", "read", ours.fingerprint, length, length), body)


def plain(blob: bytes, path: Path) -> int:
    """Write, sync and read the same bytes."""
    with path.open("wb") as out:
        out.write(blob)
        out.flush()
        os.fsync(out.fileno())
    return len(path.read_bytes())


def written(payload: Payload, folder: Path) -> int:
    """Bytes of the payload's file."""
    path = folder / "size.safetensors"
    write_payload(payload, path)
    return path.stat().st_size


def avp_round_trip(payload: Payload) -> Any | None:
    """The peer's serialisation of the same cache to a file and back, synced as well; None when not installed."""
    try:
        from avp.context import AVPContext
    except ImportError:
        return None
    from transformers import DynamicCache

    assert isinstance(payload.body, CacheBody)
    layers = [(k[None], v[None]) for k, v in zip(payload.body.cache.keys, payload.body.cache.values, strict=True)]
    context = AVPContext(
        past_key_values=DynamicCache(layers), model_hash="m", num_steps=0, seq_len=POSITIONS, num_layers=len(layers)
    )

    def run(path: Path) -> Any:
        with path.open("wb") as out:
            out.write(context.to_bytes())
            out.flush()
            os.fsync(out.fileno())
        return AVPContext.from_bytes(path.read_bytes())

    return run


if __name__ == "__main__":
    main()
