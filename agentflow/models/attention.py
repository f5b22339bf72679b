"""Attention over cached prefixes that are stored once, however many rows of a batch stand on them.

One function is registered with transformers for every model that is served. It sees queries after RoPE and the
batch's own new keys and values; the prefixes come from a `Plan` beside the call. For each prefix the queries of all
its rows, tokens and grouped heads are stacked into one product, the rows' own tokens are attended apart, and the
parts are merged by their log-sum-exps, which is exact (the idea of Hydragen, arXiv 2402.05099). Parts of different rows
are laid side by side first, so that a batch with a prefix a row is merged once, not once a row. So there is no N-fold
copy of a prefix, no padding of it, and nothing mutates it.

Masks are built by the plan, from positions; the mask function registered beside it therefore returns none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agentflow.models.plan import NEGATIVE, Plan, Segment, Wave, current

NAME = "agentflow"
_flash_cpu = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
PLAIN_CHUNK = 1 << 26
"""Scores (numbers) that the plain path holds at once: 256 MB in float32."""


class Stopped(Exception):  # noqa: N818 - a way out of a forward pass, not an error
    """Carries the keys and values `(B, kv_heads, m, head_dim)` of the layer where a plan said to stop."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__("stopped as planned")
        self.key, self.value = key, value


def install(model: Any) -> None:
    """Make a loaded transformers model use this module's attention."""
    register()
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)


def register() -> None:
    """Register the attention with its mask function; registering again changes nothing."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """Masks are built in `attention`, from the plan's positions."""


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend to the plan's prefixes and the batch's own entries.

    Args:
        query: `(B, heads, n, head_dim)`, after RoPE.
        key: `(B, kv_heads, m, head_dim)`, the batch's own entries; value likewise.
        sliding_window: how many positions back a query sees, itself included.
        softcap: `tanh` cap of the logits (Gemma 2).
        s_aux: one attention-sink logit per head (gpt-oss).

    Returns:
        `(B, n, heads, value_dim)`, and None in place of attention weights.
    """
    plan = current.get()
    layer = int(module.layer_idx)
    if plan is None:
        positions = torch.arange(key.shape[2], device=key.device).expand(key.shape[0], -1)
        plan = Plan((), positions)
    if plan.capture is not None:
        plan.capture[layer] = query.detach()
    if plan.stop_at == layer:
        raise Stopped(key, value)
    scale = float(scaling) if scaling is not None else query.shape[-1] ** -0.5
    n, m = query.shape[2], key.shape[2]
    mask = plan.own_mask(n, sliding_window, query.dtype)
    causal = n == m and n > 1 and plan.valid is None and (sliding_window is None or sliding_window >= n)
    if not plan.segments and softcap is None and s_aux is None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=None if causal else mask, is_causal=causal, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2), None
    parts = [_Part(*_own(query, key, value, mask, causal, scale, softcap))]
    for wave in plan.waves:
        found = [_shared(plan, s, rows, layer, query, scale, softcap, sliding_window) for s, rows in wave.segments]
        parts.append(_side_by_side(found, wave))
    out = _merge(parts, s_aux)
    return out.to(query.dtype).transpose(1, 2), None


@dataclass(frozen=True, eq=False)
class _Part:
    """Attention over a part of the keys: `out (R, heads, n, dim)`, its log-sum-exp, and the rows it is of."""

    out: Tensor
    lse: Tensor
    rows: Tensor | None = None


def _own(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """The rows' own entries. Grouped heads are folded into the query axis unless the mask is the causal one."""
    b, heads, n, d = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    if causal and group > 1 and not _flash_fits(softcap, query, key, value):
        causal = False
    if causal:
        return _partial(query, key, value, None, True, scale, softcap)
    if mask is not None and group > 1:
        mask = mask.expand(b, 1, n, -1).repeat(1, 1, group, 1)
    folded = query.reshape(b, kv_heads, group * n, d)
    out, lse = _partial(folded, key, value, mask, False, scale, softcap)
    return out.reshape(b, heads, n, -1), lse.reshape(b, heads, n)


def _shared(
    plan: Plan,
    segment: Segment,
    rows: Tensor | None,
    layer: int,
    query: Tensor,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    """One prefix: all queries of its rows in one product; output and log-sum-exp."""
    picked = query if rows is None else query.index_select(0, rows)
    r, heads, n, d = picked.shape
    k, v = segment.cache.keys[layer].to(query.dtype), segment.cache.values[layer].to(query.dtype)
    kv_heads = k.shape[0]
    group = heads // kv_heads
    mask: Tensor | None = None
    if segment.cache.bias is not None:
        mask = segment.cache.bias[layer].to(query.dtype)[None, :, None, :]
    hidden = _hidden(plan, segment, n, window, rows) if window is not None or segment.causal else None
    if hidden is not None:
        # (r, n, T) -> the stacked order (group, r, n)
        far = hidden.expand(group, r, n, -1).reshape(1, 1, group * r * n, -1)
        base = mask if mask is not None else torch.zeros((), dtype=query.dtype, device=query.device)
        mask = torch.where(far, NEGATIVE, base)
    if mask is not None:
        mask = mask.expand(1, kv_heads, group * r * n, k.shape[1])
    # (r, kv_heads, group, n, d) -> (kv_heads, group, r, n, d): rows, tokens and grouped heads share their keys.
    stacked = picked.reshape(r, kv_heads, group, n, d).permute(1, 2, 0, 3, 4).reshape(1, kv_heads, group * r * n, d)
    out, lse = _partial(stacked, k[None], v[None], mask, False, scale, softcap)
    if hidden is not None:  # a query that sees nothing of this prefix: kernels differ in what they return for it
        blind = hidden.all(dim=-1).expand(group, r, n).reshape(1, 1, group * r * n)
        lse, out = lse.masked_fill(blind, NEGATIVE), out.masked_fill(blind.unsqueeze(-1), 0.0)
    out = out.reshape(kv_heads, group, r, n, -1).permute(2, 0, 1, 3, 4).reshape(r, heads, n, -1)
    lse = lse.reshape(kv_heads, group, r, n).permute(2, 0, 1, 3).reshape(r, heads, n)
    return out, lse


def _side_by_side(found: Sequence[tuple[Tensor, Tensor]], wave: Wave) -> _Part:
    """What a wave's rows attended, as one part."""
    out, lse = found[0] if len(found) == 1 else (torch.cat(tensors) for tensors in zip(*found, strict=True))
    if wave.order is not None:
        out, lse = out.index_select(0, wave.order), lse.index_select(0, wave.order)
    return _Part(out, lse, wave.rows)


def _hidden(plan: Plan, segment: Segment, n: int, window: int | None, rows: Tensor | None) -> Tensor | None:
    """`(r, n, T)` true where a prefix position lies outside a sliding window or behind; None when none does."""
    queries = plan.positions[:, -n:] if rows is None else plan.positions.index_select(0, rows)[:, -n:]
    distance = queries[:, :, None] - segment.cache.rotary_positions[None, None, :]
    hidden = distance < 0
    if window is not None:
        hidden = hidden | (distance >= window)
    return hidden if bool(hidden.any()) else None


def _flash_fits(softcap: float | None, *tensors: Tensor) -> bool:
    """Whether PyTorch's fused CPU kernel, which also returns the log-sum-exp, can take this product."""
    # Its log-sum-exp has no gradient. A prefix may need one where the query does not: in the first layer.
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return _flash_cpu is not None and tensors[0].device.type == "cpu" and softcap is None and not needs_gradient


def _partial(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Attention over these keys alone: output `(B, H, n, dim)` and natural log-sum-exp `(B, H, n)` in float32."""
    if _flash_fits(softcap, query, key, value) and key.shape[-1] == value.shape[-1]:
        assert _flash_cpu is not None
        out, lse = _flash_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
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


def _merge(parts: list[_Part], sink: Tensor | None) -> Tensor:
    """Join parts by their share of the attention mass; a sink takes mass and gives nothing."""
    first = parts[0]
    if len(parts) == 1 and sink is None:
        return first.out
    top = first.lse
    for part in parts[1:]:
        if part.rows is None:
            top = torch.maximum(top, part.lse)
        else:
            top = top.index_copy(0, part.rows, torch.maximum(top.index_select(0, part.rows), part.lse))
    if sink is not None:
        sink = sink.float().reshape(1, -1, 1)
        top = torch.maximum(top, sink)
    mass = (first.lse - top).exp()
    total, out = mass, first.out * mass.unsqueeze(-1).to(first.out.dtype)
    for part in parts[1:]:
        peak = top if part.rows is None else top.index_select(0, part.rows)
        mass = (part.lse - peak).exp()
        weighted = part.out * mass.unsqueeze(-1).to(part.out.dtype)
        if part.rows is None:
            total, out = total + mass, out + weighted
        else:
            total, out = total.index_add(0, part.rows, mass), out.index_add(0, part.rows, weighted)
    if sink is not None:
        total = total + (sink - top).exp()
    return out / total.unsqueeze(-1).to(out.dtype)
