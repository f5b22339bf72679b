"""Which entries of a cache are meant: numbers or a mask, checked before keys could be paired with other positions."""

from __future__ import annotations

import torch
from torch import Tensor

from agentflow.errors import PayloadError


def entry_numbers(index: Tensor, length: int) -> Tensor:
    """Entry numbers `(n,)` in ascending order.

    Args:
        index: distinct entry numbers `(n,)` in any order, or a mask `(length,)` of booleans.
        length: of the cache.

    Raises:
        PayloadError: an entry is named twice or does not exist, or the mask has another length.
    """
    if index.dtype == torch.bool:
        if index.shape != (length,):
            raise PayloadError(f"A mask of shape {tuple(index.shape)} can't select from {length} entries.")
        return index.nonzero().flatten()
    index = torch.sort(index.to(torch.long)).values
    if index.numel() and (int(index[0]) < 0 or int(index[-1]) >= length or bool((index.diff() == 0).any())):
        raise PayloadError(f"Entries to select must be distinct and between 0 and {length - 1}.")
    return index
