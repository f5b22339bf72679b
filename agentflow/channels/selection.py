"""Which positions of a trajectory matter for a task: attention of the task's words, whole sentences, a lexical prior.

After Latent Briefing (Ramp Labs, April 2026). What measured better than its uniform vote is the default: few heads
of a model look where an answer is (retrieval heads, arXiv 2404.15574), and `agentflow calibrate` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentflow.channels.briefing_settings import LEAST_BY_THRESHOLD, LatentBriefingSettings
from agentflow.channels.lexical import relevance
from agentflow.kv.cache import KVCache
from agentflow.kv.keeping import Keep, by_segment, shared_score, smooth, standardised
from agentflow.kv.matching import attention_scores
from agentflow.kv.payload import Turn
from agentflow.models.chat import join, prompt_span
from agentflow.models.engine import Engine
from agentflow.models.heads import HeadWeights, find_weights, load_weights
from agentflow.models.sentences import paragraphs_of, sentences_of

SCORING_TOKENS = 64
"""The prompt's last words that score: what is asked stands at the end, and a long prompt would drown it."""
OWN_WINDOW = 64
"""Most of a trajectory's last tokens that score where the task does not; an eighth of it where that is less."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A trajectory, and a receiver that is about to read its own turn on top of it.

    Attributes:
        cache: of the whole trajectory, `token_ids` its tokens.
        suffix: tokens of the receiver's turn; `asked` says which of them are the prompt's own words.
        queries: of the suffix on top of the cache, per layer `(heads, n, head_dim)`.
        prompt: in words.
    """

    engine: Engine
    cache: KVCache
    token_ids: tuple[int, ...]
    suffix: tuple[int, ...]
    asked: slice
    queries: tuple[Tensor, ...]
    prompt: str

    @property
    def kept_ids(self) -> tuple[int, ...]:
        """The tokens of the entries that the cache has; of a trajectory that was compacted before, not all."""
        return tuple(self.token_ids[at] for at in self.cache.positions.tolist())


def scene_of(
    engine: Engine,
    cache: KVCache,
    token_ids: tuple[int, ...],
    history: Sequence[Turn],
    system: str,
    prompt: str,
    head: int = 0,
) -> Scene | None:
    """The scene of an agent whose turn continues `history`, of which `cache` holds `token_ids`.

    Args:
        head: where the history begins in the cache, behind other conversations that were joined before it.

    Returns:
        None if its rendering does not begin with the cache's tokens.
    """
    own, asked = prompt_span(engine.tokenizer, system, prompt, history)
    joined = join(own, cache, token_ids, head)
    if joined.prefix is None:
        return None
    before = len(own) - len(joined.suffix)
    words = slice(max(0, asked.start - before, asked.stop - before - SCORING_TOKENS), asked.stop - before)
    queries = engine.queries(joined.prefix, joined.suffix)
    return Scene(engine, joined.prefix, token_ids, joined.suffix, words, queries, prompt)


def select(scene: Scene, settings: LatentBriefingSettings) -> tuple[Tensor, Tensor | None]:
    """The positions that stay.

    Returns:
        `(kept,)` ascending indices; and with `selection: per_head` each head's own `(layers, kv_heads, kept)`.
    """
    segments, texts = sentences_of(scene.engine.tokenizer, scene.kept_ids)
    segments[: settings.sinks] = -1  # sinks are looked at by everybody: they say nothing about their sentence
    scores = raw_scores(scene, settings)
    scores = _smoothed(scores, segments.to(scores.device), settings)
    score = _one_score(scene, scores, segments, texts, settings)
    kept = _keep(scene, settings).positions(score)
    if settings.selection == "shared":
        return kept, None
    return kept, _per_head(scores, scene.cache.keys[0].shape[0], len(kept), settings.sinks)


def raw_scores(scene: Scene, settings: LatentBriefingSettings) -> Tensor:
    """How much each head looks at each position, `(layers, heads, T)`; one head when nobody looks."""
    cache, scale = scene.cache, scene.engine.attention_scale
    if settings.score == "random":
        generator = torch.Generator().manual_seed(len(cache))
        return torch.rand(len(cache.keys), 1, len(cache), generator=generator).to(cache.keys[0].device)
    if settings.score == "own":
        return _own_scores(scene, scale)
    asked = scene.asked if settings.scored_by == "prompt" else slice(None)
    return attention_scores([q[:, asked] for q in scene.queries], cache.keys, scale, cache.bias)


def _own_scores(scene: Scene, scale: float) -> Tensor:
    """By the trajectory's last tokens, as a server without the task in hand does it; they themselves stay."""
    cache, end = scene.cache, scene.cache.next_position
    window = max(1, min(OWN_WINDOW, end // 8))
    before = cache.before(end - window)
    queries = scene.engine.queries(before, scene.token_ids[end - window : end])
    scores = attention_scores(queries, before.keys, scale, before.bias)
    rest = len(cache) - len(before)
    return torch.cat([scores, scores.amax(dim=-1, keepdim=True).expand(-1, -1, rest)], dim=-1)


def _smoothed(scores: Tensor, segments: Tensor, settings: LatentBriefingSettings) -> Tensor:
    if settings.score == "random":
        return scores
    if settings.smooth == "sentence":
        # Sentences are for the task; what is blind to it is smoothed over neighbours, as its authors do.
        return by_segment(scores, segments) if settings.score == "task" else smooth(scores, 9)
    return smooth(scores, settings.smooth)


def _one_score(
    scene: Scene, scores: Tensor, segments: Tensor, texts: Sequence[str], settings: LatentBriefingSettings
) -> Tensor:
    """One score `(T,)` for all heads, with the lexical prior."""
    heads = _heads(scene, settings) if settings.score == "task" else None
    first = 0 if heads is not None else int(settings.first_layer * scores.shape[0])
    score = shared_score(scores, first_layer=first, weights=heads.fitting(scores) if heads else None)
    if settings.prior == "none" or settings.score != "task":
        return score
    found = torch.cat([lexical_prior(texts, scene.prompt), torch.zeros(1)])[segments].to(score)  # the last: no sentence
    rest = slice(settings.sinks, None)
    score[rest] = standardised(score[rest]) + settings.prior_weight * standardised(found[rest])
    return score


def lexical_prior(texts: Sequence[str], prompt: str) -> Tensor:
    """BM25 of each sentence `(n,)`, and half as much of its paragraph: a title or a subject is named only once."""
    paragraph, paragraphs = paragraphs_of(texts)
    whole = _to_one(relevance(paragraphs, prompt))
    return _to_one(relevance(texts, prompt)) + 0.5 * whole[paragraph]


def _to_one(score: Tensor) -> Tensor:
    return score / score.max().clamp_min(1e-9) if score.numel() else score


def _heads(scene: Scene, settings: LatentBriefingSettings) -> HeadWeights | None:
    if settings.head_weights == "uniform":
        return None
    if settings.head_weights == "auto":
        return find_weights(scene.engine.loaded.spec, scene.engine.fingerprint)
    assert not isinstance(settings.head_weights, str)
    return load_weights(settings.head_weights)


def _keep(scene: Scene, settings: LatentBriefingSettings) -> Keep:
    least = settings.least
    if least is None:
        least = LEAST_BY_THRESHOLD if settings.threshold == "mad" else 1
    t = automatic_t(len(scene.cache), len(scene.suffix)) if settings.t == "auto" else settings.t
    return Keep(settings.threshold, t, settings.ratio, settings.top_k, settings.sinks, least, settings.most)


def automatic_t(length: int, asked: int) -> float:
    """`t: auto`: long documents are compressed lightly, hard questions on shorter ones hard, simple ones in between.

    Args:
        length: of the trajectory, in positions.
        asked: tokens of the receiver's turn; how long a question is stands for how hard it is.
    """
    if length > 4096:
        return 0.0
    return 2.0 if asked > 80 else 1.0


def _per_head(scores: Tensor, kv_heads: int, count: int, sinks: int) -> Tensor:
    """Each KV head's own `count` positions `(layers, kv_heads, count)`, by the mean over its query heads."""
    layers, heads, length = scores.shape
    own = scores.reshape(layers, kv_heads, -1, length).mean(dim=2) if heads >= kv_heads else scores
    ranked = own.expand(layers, kv_heads, length).clone()
    ranked[..., :sinks] = float("inf")
    return ranked.topk(count, dim=-1).indices.sort(dim=-1).values
