"""Work in parts that fit into memory: halved where an estimate was wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_halves(work: Callable[[Sequence[T]], list[R]], parts: Sequence[T]) -> list[R]:
    """Do `work` on all parts; when memory runs out, on each half, down to single ones.

    Raises:
        RuntimeError: one part alone does not fit.
    """
    try:
        return work(parts)
    except RuntimeError as error:
        if len(parts) <= 1 or not is_out_of_memory(error):
            raise
    # Outside the handler: the error holds what the attempt had taken.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(parts) // 2
    return [*in_halves(work, parts[:middle]), *in_halves(work, parts[middle:])]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device or the host ran out of memory; the CPU's allocator says it in words only."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text or "not enough memory" in text
