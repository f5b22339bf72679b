"""Channel `latent_briefing`: the sender's cache, compacted for the receiver's task.

After Latent Briefing (Ramp Labs, April 2026) on Attention Matching (arXiv 2602.16284): queries of the receiver's own
prompt score the positions of the trajectory; one selection for all layers and heads keeps those that stand out; biases
and values of what is kept are fitted so that the receiver attends as it would have to everything. Kept keys stay at
their positions, and the receiver's tokens begin behind the original length.

The published scoring is the setting `first_layer: 0, smooth: 1, prior: none`; the defaults are what measured better.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from agentflow.channels.base import FITS, Channel, ChannelSettings, Compatibility, Context, Joining, Message, Task
from agentflow.channels.cache import context_of_cache
from agentflow.channels.lexical import relevance
from agentflow.channels.trajectory import encode
from agentflow.errors import ChannelError
from agentflow.kv.bodies import CacheBody, TextBody
from agentflow.kv.cache import KVCache
from agentflow.kv.keeping import Keep, by_segment, shared_score, smooth, standardised
from agentflow.kv.matching import attention_scores, fit
from agentflow.kv.payload import Header, Payload
from agentflow.models.chat import conversation, join, render
from agentflow.models.engine import Engine
from agentflow.models.heads import load_weights
from agentflow.models.sentences import sentences_of
from agentflow.models.spec import ModelSpec


class LatentBriefingSettings(ChannelSettings):
    """Settings of `latent_briefing`."""

    threshold: Literal["mad", "ratio", "top_k"] = Field(default="mad", description="how the number kept is decided")
    t: float | Literal["auto"] = Field(
        default=1.0, description="mad: keep scores above median + t·MAD; auto: by length and difficulty"
    )
    ratio: float = Field(default=0.3, gt=0, le=1, description="ratio: the share of positions kept")
    top_k: int = Field(default=256, ge=1, description="top_k: the number of positions kept")
    sinks: int = Field(default=12, ge=0, description="leading positions that are always kept")
    least: int = Field(default=64, ge=1, description="keep at least so many positions: short messages gain nothing")
    most: int | None = Field(default=None, ge=1, description="keep at most so many positions")
    selection: Literal["shared", "per_head"] = Field(default="shared", description="one selection, or one a head")
    refit: Literal["none", "beta", "values", "both"] = Field(default="both", description="what is fitted")
    ridge: float = Field(default=0.01, gt=0, description="pull of the values toward what they were")
    queries: Literal["task", "repeat", "both"] = Field(
        default="task", description="reference queries: of the receiver's prompt, of the trajectory read again, or both"
    )
    score: Literal["task", "own", "random"] = Field(
        default="task", description="who scores: the task; own: the trajectory's end, blind to the task; random: nobody"
    )
    first_layer: float = Field(default=0.33, ge=0, lt=1, description="share of the layers that have no say in scores")
    smooth: int | Literal["sentence"] = Field(
        default=9, description="mean of the scores over so many neighbours, or over whole sentences"
    )
    prior: Literal["none", "lexical"] = Field(
        default="lexical", description="lexical: add the BM25 of a position's sentence for the task"
    )
    head_weights: Path | None = Field(default=None, description="file with a weight for each layer and head")
    max_loss: float | None = Field(
        default=None, gt=0, description="bound on the held-out error of the attention output"
    )
    on_loss: Literal["warn", "text", "full"] = Field(
        default="warn", description="what to send when the bound is passed: this all the same, text, or the whole cache"
    )


@dataclass(frozen=True, eq=False)
class Briefing:
    """A compacted cache and what is known about it."""

    cache: KVCache
    stats: dict[str, float]


class LatentBriefingChannel(Channel):
    """The positions that matter for the receiver's task, refitted to answer its attention as all of them would."""

    name = "latent_briefing"
    Settings = LatentBriefingSettings
    settings: LatentBriefingSettings
    needs_cache = True
    task_free = False
    compresses = True

    def check(self, sender: ModelSpec, receiver: ModelSpec) -> Compatibility:
        """Any sender: its words are encoded by the receiver's model where the weights differ."""
        del sender, receiver
        return FITS

    def send(self, message: Message, task: Task) -> Payload:
        """Encode the trajectory (where the sender has not), and compact it for the task."""
        engine = task.engine
        _refuse_windows(engine)
        start = time.perf_counter()
        cache, token_ids, computed = encode(message, engine)
        encoded = time.perf_counter()
        own = render(engine.tokenizer, conversation(task.system, task.prompt, message.turns), reply=True)
        joined = join(own, cache, token_ids)
        if joined.prefix is None:
            raise ChannelError(f"The receiver's conversation does not begin with that of '{message.sender}'.")
        full = joined.prefix
        briefing = compact(engine, full, token_ids, joined.suffix, task.prompt, self.settings)
        stats = {
            **briefing.stats,
            "trajectory_tokens": float(computed),
            "trajectory_seconds": encoded - start,
            "compaction_seconds": time.perf_counter() - encoded,
        }
        return self._payload(message, engine, full, token_ids, briefing, stats)

    def receive(self, payload: Payload, receiver: Engine) -> Context:
        """Stand on the compacted cache; or read the text that was sent in its place."""
        if isinstance(payload.body, TextBody):
            return Context(turns=payload.body.turns)
        context = context_of_cache(payload, receiver, Joining())
        return replace(context, stats=dict(payload.stats))

    def _payload(
        self,
        message: Message,
        engine: Engine,
        full: KVCache,
        token_ids: tuple[int, ...],
        briefing: Briefing,
        stats: dict[str, float],
    ) -> Payload:
        s = self.settings
        lost = s.max_loss is not None and stats["output_error"] > s.max_loss
        stats["bound_passed"] = float(lost)
        cache, losses = briefing.cache, [f"{len(briefing.cache)} of {len(full)} positions kept"]
        if lost and s.on_loss == "text":
            header = Header(self.name, message.sender, losses=("sent as text: the loss bound was passed",))
            return Payload(header, TextBody(message.turns), stats)
        if lost and s.on_loss == "full":
            cache, losses = full, ["sent whole: the loss bound was passed"]
        header = Header(
            self.name, message.sender, engine.fingerprint, full.next_position, len(cache), (*message.losses, *losses)
        )
        body = CacheBody(cache, token_ids[: full.next_position], message.turns, message.head)
        return Payload(header, body, stats)


def compact(
    engine: Engine,
    cache: KVCache,
    token_ids: tuple[int, ...],
    suffix: tuple[int, ...],
    prompt: str,
    settings: LatentBriefingSettings,
) -> Briefing:
    """Compact `cache` for a receiver that is about to read `suffix`.

    Args:
        token_ids: of the cache's positions.
        prompt: the receiver's task in words, for the lexical prior.
    """
    task_queries = engine.queries(cache, suffix)
    references = _references(engine, cache, token_ids, suffix, task_queries, settings)
    scores = _scores(engine, cache, token_ids, task_queries, settings)
    keep = Keep(
        settings.threshold,
        _threshold(settings, len(cache), suffix),
        settings.ratio,
        settings.top_k,
        settings.sinks,
        settings.least,
        settings.most,
    )
    score = _one_score(engine, scores, token_ids[: len(cache)], prompt, settings)
    kept = keep.positions(score)
    each: Tensor = kept
    if settings.selection == "per_head":
        each = _per_head(scores, cache.keys[0].shape[0], len(kept), settings)
    found = fit(
        references,
        cache.keys,
        cache.values,
        each,
        engine.attention_scale,
        bias=settings.refit in ("beta", "both"),
        refit_values=settings.refit in ("values", "both"),
        ridge=settings.ridge,
    )
    keys = tuple(_pick(k, each, layer) for layer, k in enumerate(cache.keys))
    small = KVCache(keys, found.values, cache.positions[kept], cache.next_position, found.bias)
    stats = {
        "kept_share": len(kept) / max(1, len(cache)),
        "output_error": found.output_error,
        "mass_error": found.mass_error,
    }
    return Briefing(small, stats)


def _scores(
    engine: Engine,
    cache: KVCache,
    token_ids: tuple[int, ...],
    task_queries: tuple[Tensor, ...],
    settings: LatentBriefingSettings,
) -> Tensor:
    """`(layers, heads, T)`, smoothed."""
    if settings.score == "random":
        generator = torch.Generator().manual_seed(len(cache))
        return torch.rand(len(cache.keys), 1, len(cache), generator=generator)
    queries = task_queries
    if settings.score == "own":
        window = min(64, len(cache) - 1)
        queries = engine.queries(cache.before(len(cache) - window), token_ids[len(cache) - window : len(cache)])
        scores = attention_scores(queries, [k[:, : len(cache) - window] for k in cache.keys], engine.attention_scale)
        tail = scores.amax(dim=-1, keepdim=True).expand(-1, -1, window)  # the window itself always stays
        scores = torch.cat([scores, tail], dim=-1)
    else:
        scores = attention_scores(queries, cache.keys, engine.attention_scale)
    return smooth(scores, settings.smooth) if isinstance(settings.smooth, int) else scores


def _one_score(
    engine: Engine, scores: Tensor, token_ids: tuple[int, ...], prompt: str, settings: LatentBriefingSettings
) -> Tensor:
    """One score `(T,)` for all heads, with sentences and the lexical prior."""
    weights = load_weights(settings.head_weights, scores) if settings.head_weights else None
    score = shared_score(scores, first_layer=int(settings.first_layer * scores.shape[0]), weights=weights)
    lexical = settings.prior == "lexical" and settings.score == "task"
    if settings.smooth != "sentence" and not lexical:
        return score
    segments, texts = sentences_of(engine.tokenizer, token_ids)
    segments = segments.to(score.device)
    if settings.smooth == "sentence":
        score = by_segment(score, segments)
    if lexical:
        found = torch.cat([relevance(texts, prompt), torch.zeros(1)]).to(score)  # the last is for no sentence
        score = standardised(score) + standardised(found[segments])
    return score


def _per_head(scores: Tensor, kv_heads: int, count: int, settings: LatentBriefingSettings) -> Tensor:
    """Each KV head's own `count` positions `(layers, kv_heads, count)`, by the mean over its query heads."""
    layers, _heads, length = scores.shape
    own = scores.reshape(layers, kv_heads, -1, length).mean(dim=2) if scores.shape[1] >= kv_heads else scores
    ranked = own.expand(layers, kv_heads, length).clone()
    ranked[..., : settings.sinks] = float("inf")
    return ranked.topk(count, dim=-1).indices.sort(dim=-1).values


def _references(
    engine: Engine,
    cache: KVCache,
    token_ids: tuple[int, ...],
    suffix: tuple[int, ...],
    task_queries: tuple[Tensor, ...],
    settings: LatentBriefingSettings,
) -> tuple[Tensor, ...]:
    """The queries that the fit must answer, per layer `(heads, n, head_dim)`."""
    if settings.queries == "task":
        return task_queries
    again = token_ids[max(0, len(cache) - 256) : len(cache)]
    repeated = engine.queries(cache, again)
    if settings.queries == "repeat":
        return repeated
    return tuple(torch.cat(pair, dim=1) for pair in zip(task_queries, repeated, strict=True))


def _threshold(settings: LatentBriefingSettings, length: int, suffix: tuple[int, ...]) -> float:
    """`auto`: long documents are compressed lightly, hard questions on short ones hard, simple ones in between."""
    if settings.t != "auto":
        return float(settings.t)
    if length > 4096:
        return 0.0
    return 2.0 if len(suffix) > 80 else 1.0


def _pick(keys: Tensor, kept: Tensor, layer: int) -> Tensor:
    """The kept keys of a layer `(kv_heads, kept, head_dim)`."""
    if kept.ndim == 1:
        return keys.index_select(1, kept.to(keys.device))
    return keys.gather(1, kept[layer].to(keys.device).unsqueeze(-1).expand(-1, -1, keys.shape[2]))


def _refuse_windows(engine: Engine) -> None:
    if engine.has_windows:
        raise ChannelError(
            f"'{engine.loaded.spec.model}' has sliding-window layers, whose positions can't be dropped.",
            fix="Use the channel 'cache' or 'text' for this receiver.",
        )
