"""Latent briefing: what compaction costs beside the prefill it saves, and what it keeps.

Time: compaction (the receiver's turn read on the whole cache, scores, selection, fits) over the prefill of the same
trajectory, from 512 to 8,192 tokens; the batched fit against the published formulas head by head.
Content: generated private facts at a fifth of the positions, against the same without refit and random positions.
The table over more items and HotpotQA is `benchmarks.briefing_table`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from agentflow.channels.briefing_settings import LatentBriefingSettings
from agentflow.channels.compaction import compact
from agentflow.channels.selection import Scene as Briefed
from agentflow.channels.selection import scene_of, select
from agentflow.evaluation.inputs import inputs_of
from agentflow.evaluation.rows import Arm, Row
from agentflow.kv.cache import KVCache
from agentflow.kv.matching import STEPS, fit
from agentflow.kv.payload import Turn
from agentflow.models.chat import conversation, render
from agentflow.models.engine import Engine
from agentflow.tasks.private_facts import PrivateFacts, PrivateFactsSettings
from agentflow.workflow.loader import load_workflow
from benchmarks.briefing_table import Scene, remember_queries, rows_of
from benchmarks.common import arguments, engine, interleaved, paired, report

LENGTH = 2048
LENGTHS = (512, 1024, 2048, 4096, 8000)
FIFTH = {"threshold": "ratio", "ratio": 0.2, "least": 1}
ARMS = {
    "cache": Arm("cache", "channel", "cache"),
    "ours": Arm("ours", "channel", "latent_briefing", FIFTH),
    "drop only": Arm("drop only", "channel", "latent_briefing", {**FIFTH, "refit": "none"}),
    "random": Arm("random", "channel", "latent_briefing", {**FIFTH, "score": "random"}),
}


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "")
    ours = engine(chosen.model)
    settings = LatentBriefingSettings(threshold="ratio", ratio=0.3)
    told = facts(ours, LENGTH)
    cache = ours.prefill(told.ids)
    scene = read(ours, told, cache)
    kept, _ = select(scene, settings)
    ways = {
        "prefill": lambda: ours.prefill(told.ids),
        "compaction": lambda: compact(read(ours, told, cache), settings),
        "fit, batched": lambda: fit(scene.queries, cache.keys, cache.values, kept, ours.attention_scale, ridge=0.1),
        "fit, head by head": lambda: head_by_head(scene, kept, ours.attention_scale, 0.1),
    }
    seconds = interleaved(1 if chosen.quick else 5, ways)
    growth = {} if chosen.quick else grown(ours, settings)
    rows = content(ours, 6 if chosen.quick else 40)
    score = {name: fmean(r.scores["exact"] for r in of) for name, of in rows.items()}
    nll = {name: fmean(r.nll or 0.0 for r in of) for name, of in rows.items()}
    figures = {
        "compaction_over_prefill": paired(seconds["compaction"], seconds["prefill"]),
        "serial_over_batched": paired(seconds["fit, head by head"], seconds["fit, batched"]),
        "score_kept_at_fifth": score["ours"] / score["cache"] if score["cache"] else None,
        "nll_above_full_at_fifth": nll["ours"] - nll["cache"],
        "nll_above_full_at_fifth_drop_only": nll["drop only"] - nll["cache"],
        "nll_above_full_at_fifth_random": nll["random"] - nll["cache"],
    }
    notes = {f"at {n:,}": f"{compaction:.2f} s of {prefill:.2f} s" for n, (compaction, prefill) in growth.items()}
    report("Latent briefing", seconds, figures, items=len(rows["cache"]), model=chosen.model, **notes)


@dataclass(frozen=True)
class Told:
    """A reader's conversation of generated facts, its tokens, and a question about one of them."""

    turns: tuple[Turn, ...]
    ids: tuple[int, ...]
    question: str


def facts(ours: Engine, length: int) -> Told:
    """A conversation of at most `length` tokens."""
    task = PrivateFacts(PrivateFactsSettings(facts=64, questions=1))
    items = task.items(data=None, limit=1 + length // 700, seed=0)
    told = [fact for item in items for fact in item.inputs["facts"]]
    while True:
        turns = conversation("", " ".join(told))
        ids = tuple(render(ours.tokenizer, turns, reply=False))
        if len(ids) <= length:
            return Told(turns, ids, items[0].inputs["questions"][0])
        told = told[: max(1, min(len(told) - 1, len(told) * length // len(ids)))]


def read(ours: Engine, told: Told, cache: KVCache) -> Briefed:
    """The scene of a worker who is asked the question on this conversation's cache."""
    found = scene_of(ours, cache, told.ids, told.turns, "", told.question)
    assert found is not None
    return found


def head_by_head(scene: Briefed, kept: Tensor, scale: float, ridge: float) -> list[tuple[Tensor, Tensor]]:
    """The published formulas, one layer and head after the other: NNLS by projected gradient, ridge over positions."""
    found = []
    for q, k, v in zip(scene.queries, scene.cache.keys, scene.cache.values, strict=True):
        group = q.shape[0] // k.shape[0]
        for head in range(k.shape[0]):
            rows = q[head * group : (head + 1) * group].reshape(-1, q.shape[2])
            p = (scale * rows @ k[head].T).softmax(dim=-1)
            a, target = p[:, kept], p @ v[head]
            step = 1.0 / torch.linalg.matrix_norm(a, 2) ** 2
            w = torch.ones(len(kept))
            for _ in range(STEPS):
                w = (w - step * (a.T @ (a @ w - 1.0))).clamp(0.1, 20.0)
            x = a * w
            x = x / x.sum(dim=-1, keepdim=True)
            gram = x.T @ x
            gram.diagonal().add_(ridge * gram.diagonal().mean())
            own = v[head, kept]
            made = own + torch.cholesky_solve(x.T @ (target - x @ own), torch.linalg.cholesky(gram))
            found.append((w.log(), made))
    return found


def grown(ours: Engine, settings: LatentBriefingSettings) -> dict[int, tuple[float, float]]:
    """Seconds of compaction and of prefill at each length, once each."""
    found = {}
    for length in LENGTHS:
        told = facts(ours, length)
        start = time.perf_counter()
        cache = ours.prefill(told.ids)
        prefilled = time.perf_counter()
        compact(read(ours, told, cache), settings)
        found[len(told.ids)] = (time.perf_counter() - prefilled, prefilled - start)
    return found


def content(ours: Engine, count: int) -> dict[str, list[Row]]:
    """Rows of every arm over generated facts."""
    remember_queries(ours)
    workflow = load_workflow("private_facts").with_channel("cache")
    task = PrivateFacts(PrivateFactsSettings(facts=8, questions=1))
    rows: dict[str, list[Row]] = {name: [] for name in ARMS}
    for item in task.items(data=None, limit=count, seed=0):
        for row in rows_of(Scene(workflow, inputs_of(workflow, item), ours), item, list(ARMS.values()), task):
            rows[row.arm].append(row)
    return rows


if __name__ == "__main__":
    main()
