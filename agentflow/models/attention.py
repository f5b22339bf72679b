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

from agentflow.models.layout import Layout
from agentflow.models.partial import is_fused
from agentflow.models.plan import Plan, Wave, current

NAME = "agentflow"


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
    causal = n == m and n > 1 and plan.valid is None and (sliding_window is None or plan.span <= sliding_window)
    if not plan.segments and softcap is None and s_aux is None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=None if causal else mask, is_causal=causal, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous(), None
    prefixes = [placed for wave in plan.waves for placed in wave.segments]
    keys = [key, *(segment.cache.keys[layer].to(query.dtype) for segment, _ in prefixes)]
    values = [value, *(segment.cache.values[layer].to(query.dtype) for segment, _ in prefixes)]
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in (query, *keys, *values))
    fused = all(is_fused(query, k, v, softcap) for k, v in zip(keys, values, strict=True))
    layouts = [
        Layout.own(query, key, mask, causal and fused and not trained),  # elsewhere a mask costs nothing more
        *(Layout.of(plan, segment, rows, layer, query, sliding_window) for segment, rows in prefixes),
    ]
    call = _Call(layouts, plan.waves, scale, softcap, s_aux)
    added = [layout.mask for layout in layouts if layout.mask is not None]
    by_kernel = not any(t.requires_grad for t in (*added, *([s_aux] if s_aux is not None else [])))
    if trained and fused and by_kernel:
        out = _Trained.apply(call, query, *keys, *values)  # type: ignore[no-untyped-call]
    else:
        out = call.run(query, keys, values)[0]
    return out.to(query.dtype).transpose(1, 2).contiguous(), None


@dataclass(frozen=True, eq=False)
class _Call:
    """One layer's attention: its parts (the own entries first, then the prefixes by waves), and how they are merged."""

    layouts: Sequence[Layout]
    waves: Sequence[Wave]
    scale: float
    softcap: float | None
    sink: Tensor | None

    def run(self, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The merged output `(B, heads, n, dim)`; and of its log-sum-exp the largest term, and the sum below it."""
        found = [
            layout.attend(query, key, value, self.scale, self.softcap)
            for layout, key, value in zip(self.layouts, keys, values, strict=True)
        ]
        parts, left = [_Part(*found[0])], iter(found[1:])
        for wave in self.waves:
            parts.append(_side_by_side([next(left) for _ in wave.segments], wave))
        return _merge(parts, self.sink)


class _Trained(torch.autograd.Function):
    """A call by fused kernels, with gradients: of each part's keys with the weights of the whole softmax.

    The kernels have none for what is added to the logits, biases and sinks.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, query: Tensor, *keys_and_values: Tensor) -> Tensor:
        half = len(keys_and_values) // 2
        out, top, total = call.run(query, keys_and_values[:half], keys_and_values[half:])
        ctx.call = call
        ctx.save_for_backward(query, out, top + total.log(), *keys_and_values)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, out, lse, *keys_and_values = ctx.saved_tensors
        half = len(keys_and_values) // 2
        of_query, of_keys, of_values = torch.zeros_like(query), [], []
        pieces = zip(ctx.call.layouts, keys_and_values[:half], keys_and_values[half:], strict=True)
        for layout, key, value in pieces:
            q, k, v = layout.backward(gradient, query, key, value, out, lse, ctx.call.scale)
            of_query = of_query + q if layout.rows is None else of_query.index_add(0, layout.rows, q)
            of_keys.append(k)
            of_values.append(v)
        return None, of_query, *of_keys, *of_values


@dataclass(frozen=True, eq=False)
class _Part:
    """Attention over a part of the keys: `out (R, heads, n, dim)`, its log-sum-exp, and the rows it is of."""

    out: Tensor
    lse: Tensor
    rows: Tensor | None = None


def _side_by_side(found: Sequence[tuple[Tensor, Tensor]], wave: Wave) -> _Part:
    """What a wave's rows attended, as one part."""
    out, lse = found[0] if len(found) == 1 else (torch.cat(tensors) for tensors in zip(*found, strict=True))
    if wave.order is not None:
        out, lse = out.index_select(0, wave.order), lse.index_select(0, wave.order)
    return _Part(out, lse, wave.rows)


def _merge(parts: list[_Part], sink: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Join parts by their share of the attention mass; a sink takes mass and gives nothing.

    Returns:
        The output, the largest log-sum-exp of a part, and the mass relative to it.
    """
    first = parts[0]
    top = first.lse
    if len(parts) == 1 and sink is None:
        return first.out, top, torch.ones_like(top)
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
    return out / total.unsqueeze(-1).to(out.dtype), top, total
