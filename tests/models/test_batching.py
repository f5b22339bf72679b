"""Batches that fit: split by memory, halved when it runs out all the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ModelError
from agentflow.models.batching import halving, needed_bytes, split
from agentflow.models.requests import Request
from tests.tiny import tiny_engine, words


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12), budget=st.integers(1, 2000))
def test_batches_keep_the_order_and_fit_unless_a_single_request_does_not(lengths, budget):
    requests = [Request(tuple(range(n)), max_new_tokens=5) for n in lengths]
    batches = split(requests, 10, budget)
    assert [r for b in batches for r in b] == requests
    for batch in batches:
        longest = max(len(r.token_ids) for r in batch)
        assert len(batch) == 1 or sum(needed_bytes(r, 10, longest) for r in batch) <= budget


def limited(most: int, kind: type[RuntimeError] = torch.OutOfMemoryError):
    def answer(requests):
        if len(requests) > most:
            raise kind("DefaultCPUAllocator: not enough memory")
        calls.append(len(requests))
        return [r.token_ids[0] for r in requests]

    calls: list[int] = []
    return answer, calls


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_a_batch_that_runs_out_of_memory_is_halved_until_it_fits(kind):
    answer, calls = limited(2, kind)
    requests = [Request((n,)) for n in range(7)]
    assert halving(answer, requests) == list(range(7))
    assert max(calls) == 2


def test_one_request_that_does_not_fit_is_a_clear_error():
    answer, _ = limited(0)
    with pytest.raises(ModelError, match="1 positions does not fit into memory"):
        halving(answer, [Request((1,))])


def test_other_errors_are_not_taken_for_memory():
    def broken(_requests):
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        halving(broken, [Request((1,)), Request((2,))])


def test_an_engine_on_a_tight_budget_gives_the_same_answers():
    from agentflow.models.engine import Engine

    free = tiny_engine()
    tight = Engine(free.loaded, memory_budget=free.bytes_per_position * 40)
    requests = [Request(tuple(words(n, n)), max_new_tokens=6) for n in (12, 20, 7, 15)]
    assert [g.token_ids for g in tight.generate(requests)] == [g.token_ids for g in free.generate(requests)]


def test_memory_that_holds_files_counts_as_free(tmp_path, monkeypatch):
    from agentflow.models import batching

    told = tmp_path / "meminfo"
    told.write_text("MemTotal: 100 kB\nMemFree: 3 kB\nMemAvailable: 60 kB\n")
    monkeypatch.setattr(batching, "_MEMINFO", told)
    assert batching.free_bytes(torch.device("cpu")) == 60 * 1024
    monkeypatch.setattr(batching, "_MEMINFO", tmp_path / "gone")
    assert batching.free_bytes(torch.device("cpu")) > 1024
