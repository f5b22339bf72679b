"""What a training makes small: how unlikely the right answers are, and what else a recipe asks for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agentflow.adapters.examples import Example
from agentflow.adapters.passes import Pair
from agentflow.adapters.recipe import Weights

CONTRAST_TEMPERATURE = 0.1


def objective(pair: Pair, adapter: Any, batch: Sequence[Example], weights: Weights) -> Tensor:
    """The weighted sum of a batch's losses, each a mean over the answers' tokens, in nats.

    Args:
        adapter: called as an `Adapter` is.
    """
    answered = pair.answer(adapter, batch)
    total = weights.likelihood * answered.losses.mean()
    if weights.kl:
        total = total + weights.kl * divergence(pair.taught(batch), answered.logits)
    if weights.contrastive:
        total = total + weights.contrastive * contrast(pair.likeness(adapter, batch), [e.sender for e in batch])
    return total


def contrast(likeness: Tensor, texts: Sequence[Hashable]) -> Tensor:
    """InfoNCE (arXiv 1807.03748): how unlikely each message's own text is among the batch's, in nats.

    Args:
        likeness: `(messages, texts)` cosines.
        texts: which text each is of; several messages of one text are no strangers to each other.
    """
    same = torch.tensor([[a == b for b in texts] for a in texts], device=likeness.device)
    others = likeness.masked_fill(same & ~torch.eye(len(texts), dtype=torch.bool, device=same.device), -torch.inf)
    own = torch.arange(len(texts), device=likeness.device)
    return F.cross_entropy(others / CONTRAST_TEMPERATURE, own)


def divergence(taught: Tensor, found: Tensor) -> Tensor:
    """Kullback-Leibler divergence of `found` from `taught`, both logits `(tokens, vocabulary)`, per token in nats."""
    return F.kl_div(found.log_softmax(-1), taught.log_softmax(-1), reduction="batchmean", log_target=True)
