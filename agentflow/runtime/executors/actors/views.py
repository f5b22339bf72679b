"""Caches as Ray's object store holds them: the bytes of each tensor, and what they are.

NumPy arrays lie outside of the pickled part of an object and are mapped by whoever gets it on the same node, so
a cache is copied once, when it is put. NumPy knows no bfloat16: what travels is bytes, and their number format by name.

The bytes of a tensor are cut into blocks, which Ray lays behind one another, so that they are one tensor again without
a copy: Ray copies a larger block with six threads that it starts for it, and that takes three times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentflow.kv.cache import KVCache

Bytes = NDArray[np.uint8]

BLOCK = (1 << 20) - 64
"""Bytes of a block at most: below the size from which Ray uses threads, and a multiple of what it aligns blocks to."""


@dataclass(frozen=True)
class Form:
    """What the bytes of a tensor are."""

    dtype: str
    shape: tuple[int, ...]
    blocks: int


@dataclass(frozen=True, eq=False)
class Shipped:
    """A cache in the object store.

    Attributes:
        blocks: bytes of keys, values, biases (where there are any), positions, rotary positions (where they differ).
        forms: of each of these tensors.
    """

    blocks: tuple[Bytes, ...]
    forms: tuple[Form, ...]
    layers: int
    next_position: int
    has_bias: bool
    has_rotary: bool

    @classmethod
    def of(cls, cache: KVCache) -> Shipped:
        """A cache on its way; nothing is copied yet of what is contiguous on the CPU."""
        extra = [] if cache.rotary is None else [cache.rotary]
        tensors = [*cache.keys, *cache.values, *(cache.bias or ()), cache.positions, *extra]
        packed = [pack(tensor) for tensor in tensors]
        return cls(
            tuple(block for blocks, _ in packed for block in blocks),
            tuple(form for _, form in packed),
            len(cache.keys),
            cache.next_position,
            cache.bias is not None,
            cache.rotary is not None,
        )

    def cache(self) -> KVCache:
        """The cache, as views of the object store: they may be read and never written, as with any cache."""
        blocks = iter(self.blocks)
        tensors = iter([tensor_of(tuple(islice(blocks, form.blocks)), form) for form in self.forms])
        keys, values = _next(tensors, self.layers), _next(tensors, self.layers)
        bias = _next(tensors, self.layers) if self.has_bias else None
        return KVCache(keys, values, next(tensors), self.next_position, bias, next(tensors, None))


def pack(tensor: Tensor) -> tuple[list[Bytes], Form]:
    """The bytes of a tensor, copied only where they are scattered or on another device, and what they are."""
    whole: Bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    blocks = [whole[start : start + BLOCK] for start in range(0, whole.nbytes, BLOCK)]
    return blocks, Form(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), len(blocks))


def tensor_of(blocks: Sequence[Bytes], form: Form) -> Tensor:
    """A tensor on the same bytes; on a copy where they don't lie behind one another."""
    dtype: torch.dtype = getattr(torch, form.dtype)
    if not blocks:
        return torch.empty(form.shape, dtype=dtype)
    if any(b.ctypes.data != a.ctypes.data + a.nbytes for a, b in pairwise(blocks)):
        blocks = [np.concatenate(blocks)]
    # By way of an address: torch warns of arrays that can't be written to, and nobody writes to a cache.
    view: Any = (ctypes.c_char * sum(block.nbytes for block in blocks)).from_address(blocks[0].ctypes.data)
    view.owner = blocks  # the object stays in the store for as long as a tensor looks at it
    return torch.frombuffer(view, dtype=dtype).reshape(form.shape)


def _next(tensors: Iterator[Tensor], count: int) -> tuple[Tensor, ...]:
    return tuple(next(tensors) for _ in range(count))
