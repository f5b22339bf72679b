"""Latent Cache Flow beside Cache-to-Cache: sizes, bytes on the wire, and the time that adapting takes.

Sizes follow from configurations alone. Times are of the embedded pair's shapes with random weights, in turns, in one
process: what a C2C fuser of the published width does to the receiver's cache of a text, and what the variants do. What
a trained bundle carries is another question: `python -m benchmarks.lcf_table`.

    python -m benchmarks.lcf [--quick]
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from agentflow.adapters.base import Adapter, make_adapter
from agentflow.adapters.gates import OPEN
from agentflow.adapters.wire import pack
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.rope import Rope
from benchmarks.common import arguments, console, interleaved, paired, report

EMBEDDED, DERIVED = Geometry(((3, 64, 64),) * 30), Geometry(((3, 64, 64),) * 26)
QWEN25_05B, QWEN3_06B = Geometry(((2, 64, 64),) * 24), Geometry(((8, 128, 128),) * 28)
LLAMA3_8B_LAYER = Geometry(((8, 128, 128),))
LAYER_TOKENS = 3072
"""12 MB of one Llama-3-8B layer in 16 bits."""
TEXT, TURN = 256, 48
"""Tokens of the sender's text, and of the receiver's own turn."""


def main() -> None:
    """Count, time and report."""
    torch.manual_seed(0)
    asked = arguments(__doc__ or "")
    counts = {
        "delta_parameters_over_c2c": _count("lcf_delta", EMBEDDED, DERIVED) / _count("c2c", EMBEDDED, DERIVED),
        "aligned128_parameters": _count("lcf_aligned", QWEN25_05B, QWEN3_06B, width=128),
        "aligned256_parameters": _count("lcf_aligned", QWEN25_05B, QWEN3_06B, width=256),
        "pooled128_parameters": _count("lcf_pooled", QWEN25_05B, QWEN3_06B, width=128),
    }
    with torch.inference_mode():
        seconds = interleaved(3 if asked.quick else 9, _ways())
        share, layer = _wire(EMBEDDED, DERIVED, TEXT, 4), _wire(LLAMA3_8B_LAYER, LLAMA3_8B_LAYER, LAYER_TOKENS, 2)
    adapting = {name: paired(seconds["c2c, width 1024"], took) for name, took in seconds.items()}
    figures = {
        **counts,
        "c2c_adapt_over_lcf_adapt": adapting["delta"],
        "code_bytes_over_cache_bytes": share[0] / share[1],
    }
    told = ", ".join(f"{name} 1/{by:.0f}" for name, by in adapting.items() if not name.startswith("c2c"))
    console.print(f"adapting, beside c2c: {told}")
    console.print(
        f"codes: {share[0]:,} B for {share[1]:,} B of {TEXT} positions in float32; "
        f"one Llama-3-8B layer: {layer[0]:,} B for {layer[1]:,} B of {LAYER_TOKENS} positions in 16 bits"
    )
    report("adapting a message of 256 tokens (random weights)", seconds, figures, tokens=TEXT, own=TURN)


def _count(name: str, sender: Geometry, receiver: Geometry, **more: int) -> int:
    return make_adapter(name, sender, receiver, more, meta=True).parameter_count


def _ways() -> dict[str, Callable[[], object]]:
    """Adapting alone: codes there, the receiver's cache there."""
    text, own, first = _cache(DERIVED, TEXT), _cache(DERIVED, TURN), _cache(DERIVED, 1)
    partners, nobody = torch.arange(TEXT), torch.full((TURN,), -1)
    return {
        "c2c, width 1024": _decoding("c2c", text, partners),
        "aligned": _decoding("lcf_aligned", text, partners),
        "pooled": _decoding("lcf_pooled", own, nobody),
        "delta": _decoding("lcf_delta", own, nobody),
        "mapped": _decoding("lcf_mapped", first, nobody[:1]),
        "slots": _decoding("lcf_slots", first, nobody[:1]),
    }


def _decoding(name: str, cache: KVCache, partners: torch.Tensor) -> Callable[[], object]:
    adapter = _opened(make_adapter(name, EMBEDDED, DERIVED))
    codes = adapter.encode(_cache(EMBEDDED, TEXT), _ropes(EMBEDDED))
    return lambda: adapter.decode(codes, cache, _ropes(DERIVED), partners)


def _wire(sender: Geometry, receiver: Geometry, tokens: int, itemsize: int) -> tuple[int, int]:
    """Bytes of delta's codes in four bits, and of the cache that they stand for."""
    adapter = make_adapter("lcf_delta", sender, receiver)
    packed = pack(adapter.encode(_cache(sender, tokens), _ropes(sender)), 4)
    codes = sum(t.numel() * t.element_size() for t in packed.values())
    return codes, tokens * sender.scalars_per_position * itemsize


def _opened(adapter: Adapter) -> Adapter:
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if name.endswith("gate"):
                parameter.fill_(OPEN)
    return adapter.eval().requires_grad_(False)


def _cache(geometry: Geometry, tokens: int) -> KVCache:
    drawn = [torch.randn(heads, tokens, dim) for heads, dim, _ in geometry.layers]
    return KVCache.stacked(drawn, [torch.randn_like(k) for k in drawn])


def _ropes(geometry: Geometry) -> list[Rope]:
    return [Rope(1e5 ** (-torch.arange(dim // 2) / (dim // 2))) for _, dim, _ in geometry.layers]


if __name__ == "__main__":
    main()
