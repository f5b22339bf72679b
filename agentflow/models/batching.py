"""Batches that fit: requests are split by the memory they will need, and halved when the estimate was wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from agentflow.errors import ModelError
from agentflow.kv.memory import in_halves, is_out_of_memory
from agentflow.models.requests import Request

T = TypeVar("T")
_MEMINFO = Path("/proc/meminfo")
SHARE_OF_FREE = 0.6
"""Of the memory that is free when a batch begins; activations and other programs need the rest."""


def free_bytes(device: torch.device) -> int:
    """Memory that can be had now: of the GPU, or of the machine, what it holds files in included."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = _MEMINFO.read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pass  # no Linux: what is not in use at all is a lower bound
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 1 << 62


def needed_bytes(request: Request, bytes_per_position: int, longest: int) -> int:
    """What a row adds to a batch whose longest prompt has `longest` tokens; its shared prefix adds nothing."""
    kept = len(request.token_ids) + len(request.prefix or ()) if request.keep_cache else 0
    return bytes_per_position * (longest + request.max_new_tokens + kept)


def split(requests: Sequence[Request], bytes_per_position: int, budget: int) -> list[list[Request]]:
    """Cut a list of requests, in their order, into batches that fit the budget; each has at least one."""
    batches: list[list[Request]] = []
    for request in requests:
        if batches:
            candidate = [*batches[-1], request]
            longest = max(len(r.token_ids) for r in candidate)
            if sum(needed_bytes(r, bytes_per_position, longest) for r in candidate) <= budget:
                batches[-1].append(request)
                continue
        batches.append([request])
    return batches


def halving(answer: Callable[[Sequence[Request]], list[T]], requests: Sequence[Request]) -> list[T]:
    """Answer a batch; when memory runs out, its halves, down to single requests.

    Raises:
        ModelError: one request alone does not fit.
    """
    try:
        return in_halves(answer, requests)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    largest = max(len(r.token_ids) + len(r.prefix or ()) for r in requests)
    raise ModelError(
        f"A prompt of {largest:,} positions does not fit into memory.",
        fix="Send less, quantise the cache, or use a smaller model.",
    )
