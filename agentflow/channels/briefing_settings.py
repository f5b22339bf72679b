"""Settings of the channel `latent_briefing`: every switch of the method, and what measured best as the default."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from agentflow.channels.base import ChannelSettings

LEAST_BY_THRESHOLD = 64
"""Positions that a threshold on the scores never goes below, unless told: short messages gain nothing."""


class LatentBriefingSettings(ChannelSettings):
    """Settings of `latent_briefing`.

    As published: `gaps: keep, refit: both`, and the scoring `head_weights: uniform, first_layer: 0, scored_by: turn,
    smooth: 1, prior: none`.
    """

    threshold: Literal["mad", "ratio", "top_k"] = Field(default="mad", description="how the number kept is decided")
    t: float | Literal["auto"] = Field(
        default=1.0, description="mad: keep scores above median + t·MAD; auto: by length and difficulty"
    )
    ratio: float = Field(default=0.3, gt=0, le=1, description="ratio: the share of positions kept")
    top_k: int = Field(default=256, ge=1, description="top_k: the number of positions kept")
    sinks: int = Field(default=4, ge=0, description="leading positions that are always kept")
    least: int | None = Field(
        default=None,
        ge=1,
        description=f"keep at least so many positions; left out: {LEAST_BY_THRESHOLD} with mad, as told otherwise",
    )
    most: int | None = Field(default=None, ge=1, description="keep at most so many positions")
    selection: Literal["shared", "per_head"] = Field(default="shared", description="one selection, or one a head")
    gaps: Literal["close", "keep"] = Field(
        default="close",
        description="close: kept keys are turned to stand right behind one another, and the receiver behind them; "
        "keep: everything stays where it was",
    )
    refit: Literal["none", "beta", "values", "both"] = Field(default="values", description="what is fitted")
    ridge: float = Field(default=0.03, gt=0, description="pull of the values toward what they were")
    queries: Literal["task", "repeat", "both"] = Field(
        default="task", description="what is fitted to: the receiver's turn, the trajectory read again, or both"
    )
    score: Literal["task", "own", "random"] = Field(
        default="task", description="who scores: the task; own: the trajectory's end, blind to the task; random: nobody"
    )
    scored_by: Literal["prompt", "turn"] = Field(
        default="prompt",
        description="score: task; by the words of the prompt alone, or by the whole turn with its frame",
    )
    head_weights: Path | Literal["auto", "uniform"] = Field(
        default="auto",
        description="whose scores count: a file of `agentflow calibrate`; auto: the one of the receiver's model, if "
        "there is one, else uniform: all heads alike",
    )
    first_layer: float = Field(
        default=0.33, ge=0, lt=1, description="uniform: the share of the layers, from the first, that have no say"
    )
    smooth: int | Literal["sentence"] = Field(
        default="sentence", description="mean of the scores over so many neighbours, or over whole sentences"
    )
    prior: Literal["none", "lexical"] = Field(
        default="lexical", description="lexical: add the BM25 of a position's sentence and paragraph for the task"
    )
    prior_weight: float = Field(
        default=1.0, ge=0, description="of the prior beside the attention, in standard deviations of each"
    )
    max_loss: float | None = Field(
        default=None, gt=0, description="bound on the held-out error of the attention output"
    )
    on_loss: Literal["warn", "text", "full"] = Field(
        default="warn", description="what to send when the bound is passed: this all the same, text, or the whole cache"
    )
