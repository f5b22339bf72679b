"""What a training makes small: how unlikely the right answers are, and what else a recipe asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from agentflow.adapters.examples import Example
from agentflow.adapters.passes import Pair
from agentflow.adapters.recipe import Weights


def objective(pair: Pair, adapter: Any, batch: Sequence[Example], weights: Weights) -> Tensor:
    """The weighted sum of a batch's losses, each a mean over the answers' tokens, in nats.

    Args:
        adapter: called as an `Adapter` is.
    """
    answered = pair.answer(adapter, batch)
    total = weights.likelihood * answered.losses.mean()
    if weights.kl:
        total = total + weights.kl * divergence(pair.taught(batch), answered.logits)
    return total


def divergence(taught: Tensor, found: Tensor) -> Tensor:
    """Kullback-Leibler divergence of `found` from `taught`, both logits `(tokens, vocabulary)`, per token in nats."""
    return F.kl_div(found.log_softmax(-1), taught.log_softmax(-1), reduction="batchmean", log_target=True)
