"""Attention over some of the keys alone, with its log-sum-exp, so that parts can be merged exactly.

On a CPU this is PyTorch's fused kernel; elsewhere, and with a cap on the logits, the definition in tensor operations.
The kernel's log-sum-exp has no gradient of its own: parts whose merged result needs one go back through `backward`.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEGATIVE = float("-inf")
PLAIN_CHUNK = 1 << 26
"""Scores (numbers) that the plain path holds at once: 256 MB in float32."""
_flash = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_flash_backward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def is_fused(query: Tensor, key: Tensor, value: Tensor, softcap: float | None) -> bool:
    """Whether the fused kernel can take this product, forward and backward."""
    there = _flash is not None and _flash_backward is not None
    return there and query.device.type == "cpu" and softcap is None and key.shape[-1] == value.shape[-1]


def forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Attend to these keys: output `(B, heads, n, dim)` and natural log-sum-exp `(B, heads, n)`, float32 or finer.

    Differentiable where the fused kernel is not taken: with gradients enabled and needed by any of the tensors.
    """
    added = () if mask is None else (mask,)
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value, *added))
    if not needs_gradient and is_fused(query, key, value, softcap):
        assert _flash is not None
        out, lse = _flash(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
        return out, lse
    rows_at_once = max(1, PLAIN_CHUNK // max(1, query.shape[0] * query.shape[1] * key.shape[2]))
    outs, lses = [], []
    for start in range(0, query.shape[2], rows_at_once):
        stop = start + rows_at_once
        part = None if mask is None else mask[:, :, start:stop]
        out, lse = _plain(query[:, :, start:stop], key, value, part, start if causal else None, scale, softcap)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values of one part, by the fused kernel.

    Args:
        out: the merged output over all parts, and `lse` its log-sum-exp: with them a part's weights are those of the
            whole softmax, so that the parts' gradients add up (as in ring attention, arXiv 2310.01889).
    """
    assert _flash_backward is not None
    found: tuple[Tensor, Tensor, Tensor] = _flash_backward(
        gradient, query, key, value, out, lse, 0.0, False, attn_mask=mask, scale=scale
    )
    return found


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal_from: int | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """The definition, in tensor operations: any device, differentiable, with a cap on the logits."""
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if causal_from is not None:
        row = torch.arange(causal_from, causal_from + query.shape[2], device=query.device)[:, None]
        scores = scores.masked_fill(torch.arange(key.shape[2], device=query.device) > row, NEGATIVE)
    lse = scores.logsumexp(dim=-1)
    weights = (scores - torch.where(torch.isneginf(lse), 0.0, lse).unsqueeze(-1)).exp()
    return torch.matmul(weights.to(value.dtype), value), lse
