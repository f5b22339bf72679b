"""Fan-out: eight workers say 32 tokens each on one shared prefix of 2,048 positions.

As one batch against one after the other, and against the package `avp`, whose contexts are used up by generating and
must be copied for every worker. KV memory is counted over the distinct buffers alive in each forward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from agentflow.channels.base import Message
from agentflow.models.engine import Engine
from agentflow.models.plan import Plan
from benchmarks.common import arguments, engine, interleaved, ratio, report
from benchmarks.peers import AvpContext, BareModel, avp_connector
from benchmarks.scene import own_prompt, request_over, trajectory

TRAJECTORY, OWN, WORKERS, SPOKEN = 2048, 40, 8, 32


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "")
    ours = engine(chosen.model)
    ours._end_ids = frozenset()  # everybody speaks the same number of tokens
    message = trajectory(ours, TRAJECTORY)
    prompts = [f"{n} {own_prompt(ours, message, OWN)}" for n in range(WORKERS)]
    ways = {
        "one batch": lambda: together(ours, message, prompts),
        "one after the other": lambda: [together(ours, message, [p]) for p in prompts],
    }
    bare = BareModel(chosen.model, message, OWN)
    connector = avp_connector(bare.model, ours.tokenizer)
    if connector is not None:
        peer = AvpContext(connector, message, prompts[0], SPOKEN)
        ways["avp"] = lambda: [ask(peer, p) for p in prompts]
    n = 1 if chosen.quick else 5
    seconds = interleaved(n, ways, warm=0 if chosen.quick else 1)
    peak = PeakKV(ours)
    together(ours, message, prompts)
    assert message.cache is not None
    own = WORKERS * (OWN + SPOKEN) * ours.bytes_per_position
    figures = {
        "speedup": ratio(seconds["one after the other"], seconds["one batch"]),
        "kv_memory_over_prefix": peak.bytes / (message.cache.nbytes + own),
        "avp_over_ours": ratio(seconds["avp"], seconds["one batch"]) if "avp" in seconds else None,
    }
    report(
        "Fan-out on a shared prefix",
        seconds,
        figures,
        prefix_MB=round(message.cache.nbytes / 1e6, 1),
        peak_kv_MB=round(peak.bytes / 1e6, 1),
        workers=WORKERS,
        tokens=SPOKEN,
        model=chosen.model,
    )


def together(ours: Engine, message: Message, prompts: list[str]) -> list[str]:
    """Hand the message to all workers and answer them as one batch."""
    requests = [request_over(ours, message, p, "cache", SPOKEN) for p in prompts]
    return [g.text for g in ours.generate(requests)]


def ask(peer: AvpContext, prompt: str) -> str:
    """One worker on a fresh copy of the peer's context; the copy is part of what it takes."""
    peer.prompt = prompt
    peer.prepare()
    return peer()


class PeakKV:
    """Counts the bytes of distinct KV buffers that each forward pass of an engine touches; keeps the most."""

    def __init__(self, ours: Engine) -> None:
        self.bytes = 0
        self._run = ours.run_model
        ours.run_model = self._watched  # type: ignore[method-assign]

    def _watched(self, ids: torch.Tensor, plan: Plan, cache: Any, keep: int = 1) -> torch.Tensor:
        logits = self._run(ids, plan, cache, keep)
        tensors = [t for layer in cache.layers for t in (layer.keys, layer.values)]
        tensors += [t for s in plan.segments for t in (*s.cache.keys, *s.cache.values)]
        buffers = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        self.bytes = max(self.bytes, sum(buffers.values()))
        return logits


if __name__ == "__main__":
    main()
