"""What the variants of Latent Cache Flow (arXiv 2605.22863) share: their arguments, and states as rows of numbers.

A state is one position's keys and values in one layer, all heads side by side. Where a variant looks at it without
regard to where it stands, its keys are turned back to where RoPE found them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from agentflow.adapters.base import AdapterArguments, Ropes, flat
from agentflow.errors import AdapterError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.rope import strip
from agentflow.models.alignment import LayerRule


class LayeredArguments(AdapterArguments):
    """Which of the sender's layers is looked at for which of the receiver's."""

    layers: LayerRule | tuple[int, ...] = Field(
        default="depth", description="the sender's layer for each of the receiver's: a rule, or their numbers"
    )


def states(cache: KVCache, ropes: Ropes | None = None) -> list[Tensor]:
    """Per layer `(T, heads * (key_dim + value_dim))`: keys, then values.

    Args:
        ropes: turn the keys back to where they were before RoPE; None leaves them as they are.
    """
    keys: Sequence[Tensor] = cache.keys if ropes is None else strip(cache, ropes)
    rows = zip(keys, cache.values, strict=True)
    return [torch.cat([flat(k), flat(v.to(k.device))], dim=-1) for k, v in rows]


def state_widths(geometry: Geometry) -> list[int]:
    """How many numbers a position has in each layer."""
    return [heads * (key_dim + value_dim) for heads, key_dim, value_dim in geometry.layers]


def parted(rows: Tensor, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """States `(T, width)` of a layer as keys `(heads, T, key_dim)` and values `(heads, T, value_dim)`."""
    heads, key_dim, value_dim = shape
    keys, values = rows.split([heads * key_dim, heads * value_dim], dim=-1)  # type: ignore[no-untyped-call]
    return unflat(keys, heads), unflat(values, heads)


def unflat(x: Tensor, heads: int) -> Tensor:
    """`(T, heads * dim)` as `(heads, T, dim)`."""
    return x.reshape(len(x), heads, -1).transpose(0, 1)


def part(codes: Mapping[str, Tensor], name: str, shape: Sequence[int | None]) -> Tensor:
    """One of a message's tensors, if its shape is this one (None: any number).

    Raises:
        AdapterError: it is missing, or another.
    """
    found = codes.get(name)
    fits = found is not None and found.is_floating_point() and found.ndim == len(shape)
    if found is None or not fits or any(n not in (None, m) for n, m in zip(shape, found.shape, strict=True)):
        given = "nothing" if found is None else f"{found.dtype} of the shape {tuple(found.shape)}"
        wanted = " x ".join("any" if n is None else str(n) for n in shape)
        raise AdapterError(f"The message has {given} as {name}; this adapter reads {wanted} numbers there.")
    return found
