"""Caches as Ray's object store holds them: the bytes of each tensor, and what they are.

NumPy arrays lie outside of the pickled part of an object and are mapped by whoever gets it on the same node, so
a cache is copied once, when it is put. NumPy knows no bfloat16: what travels is bytes, and their number format by name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentflow.kv.cache import KVCache

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Form:
    """What the bytes of a tensor are."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Shipped:
    """A cache in the object store.

    Attributes:
        blocks: bytes of keys, values, biases (where there are any), positions, rotary positions (where they differ).
        forms: of each block.
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
        blocks, forms = zip(*map(pack, tensors), strict=True)
        return cls(
            blocks, forms, len(cache.keys), cache.next_position, cache.bias is not None, cache.rotary is not None
        )

    def cache(self) -> KVCache:
        """The cache, as views of the object store: they may be read and never written, as with any cache."""
        tensors = iter([tensor_of(block, form) for block, form in zip(self.blocks, self.forms, strict=True)])
        keys, values = _next(tensors, self.layers), _next(tensors, self.layers)
        bias = _next(tensors, self.layers) if self.has_bias else None
        return KVCache(keys, values, next(tensors), self.next_position, bias, next(tensors, None))

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks)


def pack(tensor: Tensor) -> tuple[Bytes, Form]:
    """The bytes of a tensor, copied only where they are scattered or on another device, and what they are."""
    block: Bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return block, Form(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def tensor_of(block: Bytes, form: Form) -> Tensor:
    """A tensor on the same bytes."""
    dtype: torch.dtype = getattr(torch, form.dtype)
    if not block.nbytes:
        return torch.empty(form.shape, dtype=dtype)
    # By way of an address: torch warns of arrays that can't be written to, and nobody writes to a cache.
    view: Any = (ctypes.c_char * block.nbytes).from_address(block.ctypes.data)
    view.owner = block  # the object stays in the store for as long as a tensor looks at it
    return torch.frombuffer(view, dtype=dtype).reshape(form.shape)


def _next(tensors: Iterator[Tensor], count: int) -> tuple[Tensor, ...]:
    return tuple(next(tensors) for _ in range(count))
