"""C2C: fusing beside its arithmetic and beside the receiver's prefill, and training beside a plain loop.

The floor of fusing is its multiply-adds at this machine's rate: the matrix products of the formulas and nothing else,
into buffers that are there, with as many threads. It is taken at the width of the shipped recipe and at the published
one (1024), there on a few of the layers, which are all alike. The plain loop of training has the same batches, their
conversations read already, and makes transformers' own forward and backward pass with the formulas in between; ours
also draws the batch, clips and steps. Sender and receiver are the same model, twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from agentflow.adapters.base import Layers, make_adapter
from agentflow.adapters.c2c import C2C
from agentflow.adapters.examples import Example
from agentflow.adapters.passes import Pair
from agentflow.adapters.recipe import Recipe
from agentflow.adapters.training import Training
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.models.engine import Engine
from benchmarks.common import arguments, engine, interleaved, paired, report

NARROW, PUBLISHED = 64, 1024
LENGTH, WIDE_LENGTH, WIDE_LAYERS = 512, 256, 3
QWEN25_05B, QWEN3_06B = Geometry(((2, 64, 64),) * 24), Geometry(((8, 128, 128),) * 28)


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "", width=(NARROW, "of the narrow fuser"))
    ours = engine(chosen.model)
    geometry = ours.fingerprint.geometry
    layers = len(geometry.layers)
    narrow = Fusing(geometry, chosen.width, LENGTH)
    wide = Fusing(Geometry(geometry.layers[:WIDE_LAYERS]), PUBLISHED, WIDE_LENGTH)
    ids = torch.randint(0, 1000, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()
    ways: dict[str, Callable[[], Any]] = {
        "fuse": narrow.fuse,
        "floor of fuse": narrow.floor,
        "prefill": lambda: ours.prefill(ids),
        "prefill, wide": lambda: ours.prefill(ids[:WIDE_LENGTH]),
        "fuse, wide": wide.fuse,
        "floor of fuse, wide": wide.floor,
    }
    slow = 3 if chosen.quick else 9
    seconds = interleaved(
        9 if chosen.quick else 31, ways, few={name: slow for name in ways if name not in ("fuse", "floor of fuse")}
    )
    with TemporaryDirectory() as work:
        seconds |= trained(ours, slow, Path(work))
    over_prefill = median(seconds["fuse"]) / median(seconds["prefill"])
    wide_over_prefill = median(seconds["fuse, wide"]) * layers / WIDE_LAYERS / median(seconds["prefill, wide"])
    figures = {
        "parameters_qwen25_05b_to_qwen3_06b": make_adapter("c2c", QWEN25_05B, QWEN3_06B, meta=True).parameter_count,
        "fuse_over_floor": paired(seconds["fuse"], seconds["floor of fuse"]),
        "fuse_over_floor_published_width": paired(seconds["fuse, wide"], seconds["floor of fuse, wide"]),
        "fuse_over_receiver_prefill": over_prefill,
        "fuse_over_receiver_prefill_published_width": wide_over_prefill,
        "train_tokens_over_bare": paired(seconds["bare step"], seconds["step"]),
    }
    report("Cache-to-Cache", seconds, figures, width=chosen.width, length=LENGTH, model=chosen.model)


class Fusing:
    """Random caches of a pair of equal models, and an adapter with every gate open."""

    def __init__(self, geometry: Geometry, width: int, length: int) -> None:
        made = make_adapter("c2c", geometry, geometry, {"width": width})
        for fuser in (*made.keys, *made.values):
            nn.init.normal_(fuser.project.weight, std=0.02)
            nn.init.ones_(fuser.gate)
        self.adapter = made.ready(torch.device("cpu"), torch.float32)
        sender, self.own = (_cache(geometry, length) for _ in range(2))
        self.codes = self.adapter.encode(sender, ())
        self.partners = torch.arange(length)
        self.weights = [m.weight.t() for m in made.modules() if isinstance(m, nn.Linear)]
        self.inputs = {w.shape[0]: torch.randn(length, w.shape[0]) for w in self.weights}
        self.outputs = {w.shape[1]: torch.empty(length, w.shape[1]) for w in self.weights}

    def fuse(self) -> KVCache:
        """What the channel does with a message."""
        return self.adapter.decode(self.codes, self.own, (), self.partners)

    def floor(self) -> None:
        """Its matrix products."""
        for weight in self.weights:
            torch.mm(self.inputs[weight.shape[0]], weight, out=self.outputs[weight.shape[1]])


def trained(ours: Engine, steps: int, work: Path) -> dict[str, list[float]]:
    """Seconds of steps by our trainer and by the plain loop, on the same batches in turns."""
    recipe = Recipe.model_validate(
        {
            "arguments": {"width": NARROW},
            "sender": ours.loaded.spec.model,
            "receiver": ours.loaded.spec.model,
            "data": {"settings": {"level": "easy"}, "train": 4 * (steps + 1), "held_out": 1},
            "steps": steps + 1,
        }
    )
    training = Training(recipe, Pair(ours, ours), work, lambda _progress: None)
    batches = [training.batches(step)[0] for step in range(steps + 1)]
    bare = [BareBatch.of(training.pair, batch) for batch in batches]  # conversations are read here, for both
    taken = {"step": 0, "bare step": 0}

    def step() -> None:
        training.step(taken["step"])
        taken["step"] += 1

    def bare_step() -> None:
        bare[taken["bare step"]].step(ours, training.adapter)
        taken["bare step"] += 1

    return interleaved(steps, {"step": step, "bare step": bare_step})


@dataclass(frozen=True, eq=False)
class BareBatch:
    """A batch as a plain loop has it: conversations padded on the left, behind them turns padded on the right."""

    theirs: Layers
    own: Layers
    ids: Tensor
    mask: Tensor
    labels: Tensor
    positions: Tensor = field(repr=False)

    @classmethod
    def of(cls, pair: Pair, batch: list[Example]) -> BareBatch:
        """Pad a batch whose tokens are the same for both models."""
        theirs, own = pair.read(batch)
        longest = max(map(len, own))
        turns = [(*e.asked, *e.answer) for e in batch]
        width = max(map(len, turns))
        ids, labels = torch.zeros(len(batch), width, dtype=torch.long), torch.full((len(batch), width), -100)
        mask = torch.zeros(len(batch), longest + width, dtype=torch.long)
        for n, (turn, example, cache) in enumerate(zip(turns, batch, own, strict=True)):
            ids[n, : len(turn)] = torch.tensor(turn)
            labels[n, len(example.asked) : len(turn)] = torch.tensor(example.answer)
            mask[n, longest - len(cache) : longest + len(turn)] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, longest:]
        cut = [cache.before(len(base)) for cache, base in zip(theirs, own, strict=True)]
        return cls(_padded(cut, longest), _padded(own, longest), ids, mask, labels, positions)

    def step(self, ours: Engine, adapter: C2C) -> None:
        """Forward and backward."""
        from transformers import DynamicCache

        adapter.train()
        adapter.zero_grad()
        added = adapter.added(self.theirs, self.own)
        keys = [a + b for a, b in zip(self.own.keys, added.keys, strict=True)]
        values = [a + b for a, b in zip(self.own.values, added.values, strict=True)]
        cache = DynamicCache(list(zip(keys, values, strict=True)))
        places = {"attention_mask": self.mask, "position_ids": self.positions}
        logits = ours.loaded.model(self.ids, past_key_values=cache, **places).logits
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), self.labels[:, 1:].flatten()).backward()


def _cache(geometry: Geometry, length: int) -> KVCache:
    drawn = ([torch.randn(heads, length, dim) for heads, dim, _ in geometry.layers] for _ in range(2))
    return KVCache.stacked(*drawn)


def _padded(caches: list[KVCache], length: int) -> Layers:
    """Stacked `(B, heads, length, dim)`, zeros in front of what is shorter."""

    def stacked(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
        pads = [
            [nn.functional.pad(t, (0, 0, length - t.shape[1], 0)) for t in layer] for layer in zip(*parts, strict=True)
        ]
        return [torch.stack(layer) for layer in pads]

    return Layers(stacked([c.keys for c in caches]), stacked([c.values for c in caches]))


if __name__ == "__main__":
    main()
