"""How the queries of a batch are laid out for one product with some keys, and how what comes out is laid back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentflow.models import partial
from agentflow.models.partial import NEGATIVE
from agentflow.models.plan import Plan, Segment


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows that attend to the same keys, or each to its own.

    Attributes:
        kv_heads: heads of the keys; the grouped heads of the queries are folded into the query axis.
        shared: the keys `(kv_heads, T, dim)` are one for all rows; otherwise `(B, kv_heads, T, dim)`, each its own.
        rows: `(R,)` the rows; None for every row.
        mask: additive, over the queries as they are laid out; None where nothing is hidden.
        causal: in place of a mask, with every head by itself.
        blind: queries, as they are laid out, that see none of these keys.
    """

    kv_heads: int
    shared: bool
    rows: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    blind: Tensor | None = None

    @classmethod
    def own(cls, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Layout:
        """The batch's own entries."""
        if causal:
            return cls(key.shape[1], False, causal=True)
        group = query.shape[1] // key.shape[1]
        if mask is not None and group > 1:
            mask = mask.expand(query.shape[0], 1, query.shape[2], -1).repeat(1, 1, group, 1)
        return cls(key.shape[1], False, mask=mask)

    @classmethod
    def of(
        cls, plan: Plan, segment: Segment, rows: Tensor | None, layer: int, query: Tensor, window: int | None
    ) -> Layout:
        """A prefix, which all its rows share."""
        kv_heads, length = segment.cache.keys[layer].shape[:2]
        r = len(query) if rows is None else len(rows)
        group, n = query.shape[1] // kv_heads, query.shape[2]
        mask = blind = None
        if segment.cache.bias is not None:
            mask = segment.cache.bias[layer].to(query.dtype)[None, :, None, :]
        hidden = _hidden(plan, segment, n, window, rows) if window is not None or segment.causal else None
        if hidden is not None:
            # (r, n, T) -> the order of fold: (group, r, n)
            far = hidden.expand(group, r, n, -1).reshape(1, 1, group * r * n, -1)
            base = mask if mask is not None else torch.zeros((), dtype=query.dtype, device=query.device)
            mask = torch.where(far, NEGATIVE, base)
            blind = hidden.all(dim=-1).expand(group, r, n).reshape(1, 1, group * r * n)
        if mask is not None:
            mask = mask.expand(1, kv_heads, group * r * n, length)
        return cls(kv_heads, True, rows, mask, blind=blind)

    def fold(self, batch: Tensor) -> Tensor:
        """`(B, heads, n, …)` of the batch as it is laid out: `(1 or B, kv_heads, queries, …)`."""
        if self.causal:
            return batch
        picked = batch if self.rows is None else batch.index_select(0, self.rows)
        r, heads, n, *rest = picked.shape
        if not self.shared:
            return picked.reshape(r, self.kv_heads, heads // self.kv_heads * n, *rest)
        # (r, kv_heads, group, n) -> (kv_heads, group, r, n): rows, tokens and grouped heads share their keys.
        grouped = picked.reshape(r, self.kv_heads, heads // self.kv_heads, n, *rest)
        return grouped.movedim(0, 2).reshape(1, self.kv_heads, -1, *rest)

    def unfold(self, laid: Tensor, heads: int, n: int) -> Tensor:
        """Back to `(R, heads, n, …)`."""
        if self.causal:
            return laid
        rest = laid.shape[3:]
        if not self.shared:
            return laid.reshape(-1, heads, n, *rest)
        grouped = laid.reshape(self.kv_heads, heads // self.kv_heads, -1, n, *rest)
        return grouped.movedim(2, 0).reshape(-1, heads, n, *rest)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float | None
    ) -> tuple[Tensor, Tensor]:
        """Output `(R, heads, n, dim)` and log-sum-exp of the rows over these keys alone."""
        if self.shared:
            key, value = key[None], value[None]
        out, lse = partial.forward(self.fold(query), key, value, self.mask, self.causal, scale, softcap)
        if self.blind is not None:  # kernels differ in what they return for a query that sees nothing
            lse, out = lse.masked_fill(self.blind, NEGATIVE), out.masked_fill(self.blind.unsqueeze(-1), 0.0)
        heads, n = query.shape[1:3]
        return self.unfold(out, heads, n), self.unfold(lse, heads, n)

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the rows' queries `(R, heads, n, dim)`, of the keys and of the values (see `partial`)."""
        if self.shared:
            key, value = key[None], value[None]
        q, k, v = partial.backward(
            self.fold(gradient), self.fold(query), key, value, self.fold(out), self.fold(lse), self.mask, scale
        )
        q = self.unfold(q, *query.shape[1:3])
        return (q, k[0], v[0]) if self.shared else (q, k, v)


def _hidden(plan: Plan, segment: Segment, n: int, window: int | None, rows: Tensor | None) -> Tensor | None:
    """`(r, n, T)` true where a prefix position lies outside a sliding window or behind; None when none does."""
    queries = plan.positions[:, -n:] if rows is None else plan.positions.index_select(0, rows)[:, -n:]
    distance = queries[:, :, None] - segment.cache.rotary_positions[None, None, :]
    hidden = distance < 0
    if window is not None:
        hidden = hidden | (distance >= window)
    return hidden if bool(hidden.any()) else None
