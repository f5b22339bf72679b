"""Which positions of a cache are kept: scores over heads, smoothed over neighbours, cut by a robust threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Threshold = Literal["mad", "ratio", "top_k"]


@dataclass(frozen=True)
class Keep:
    """How many positions are kept.

    Attributes:
        threshold: `mad`: above median + t·MAD (Latent Briefing); `ratio`: a share; `top_k`: a number.
        t, ratio, top_k: for each of them.
        sinks: leading positions that always stay: attention without a target rests there.
        least, most: bounds on the number kept, in positions; None for no upper bound.
    """

    threshold: Threshold = "mad"
    t: float = 1.0
    ratio: float = 0.3
    top_k: int = 256
    sinks: int = 4
    least: int = 1
    most: int | None = None

    def count(self, score: Tensor) -> int:
        """How many of the positions with this `score (T,)` stay, sinks included."""
        length = score.shape[0]
        if self.threshold == "mad":
            median = score.median()
            mad = (score - median).abs().median()
            # More than half of the scores equal: no spread to measure by, so only what stands out at all stays.
            wanted = int((score > median + self.t * mad).sum()) if mad > 0 else int((score > median).sum())
        elif self.threshold == "ratio":
            wanted = round(self.ratio * length)
        else:
            wanted = self.top_k
        low = min(max(self.sinks + 1, self.least), length)
        high = length if self.most is None else min(length, max(low, self.most))
        return max(low, min(wanted, high))

    def positions(self, score: Tensor) -> Tensor:
        """Indices `(kept,)`, ascending: the sinks, then the best by `score (T,)`."""
        count = self.count(score)
        ranked = score.clone()
        ranked[: self.sinks] = float("inf")
        return ranked.topk(count).indices.sort().values


def shared_score(scores: Tensor, *, first_layer: int = 0, weights: Tensor | None = None) -> Tensor:
    """One score `(T,)` for all heads: a weighted mean of `scores (layers, heads, T)`.

    Args:
        first_layer: layers before it have no say.
        weights: `(layers, heads)`; None weighs all alike.
    """
    voting = scores[first_layer:]
    if weights is None:
        return voting.mean(dim=(0, 1))
    chosen = weights[first_layer:].to(voting)
    return (voting * chosen.unsqueeze(-1)).sum(dim=(0, 1)) / chosen.sum().clamp_min(1e-12)


def smooth(score: Tensor, width: int) -> Tensor:
    """Mean over `width` neighbours (odd), at the ends over those there are; the last dimension is positions."""
    if width <= 1:
        return score
    flat = score.reshape(-1, 1, score.shape[-1])
    pooled = F.avg_pool1d(flat, width, stride=1, padding=width // 2, count_include_pad=False)
    return pooled.reshape(score.shape)


def by_segment(score: Tensor, segments: Tensor) -> Tensor:
    """Every position of `score (…, T)` gets the mean of its segment (a sentence).

    Args:
        segments: `(T,)` numbers from 0; -1 for none, which keeps its own score.
    """
    known = segments >= 0
    if not bool(known.any()):
        return score
    where = segments[known]
    total = score.new_zeros(*score.shape[:-1], int(segments.max()) + 1).index_add_(-1, where, score[..., known])
    size = torch.bincount(where, minlength=total.shape[-1]).clamp_min(1)
    out = score.clone()
    out[..., known] = (total / size)[..., where]
    return out


def standardised(score: Tensor) -> Tensor:
    """Zero mean and unit variance; all zeros where there is no spread."""
    spread = score.std(unbiased=False) if score.numel() > 1 else score.new_zeros(())
    return (score - score.mean()) / spread if spread > 0 else torch.zeros_like(score)
