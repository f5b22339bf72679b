"""The same answers on a GPU. Skipped without CUDA; runs where `pytest -m gpu` finds one."""

from __future__ import annotations

import pytest
import torch

from agentflow.models.requests import Request
from tests.tiny import FAMILIES, make_engine, tiny_engine, tiny_model, words

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA; run `pytest -m gpu` on a machine with a GPU"),
]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_gpu_gives_the_cpus_logits_on_shared_and_own_prefixes(family):
    cpu, gpu = tiny_engine(family), make_engine(tiny_model(family).to("cuda"), "gpu")
    for prefix in (words(21, 1), []):
        logits = []
        for engine in (cpu, gpu):
            cache = engine.prefill(prefix) if prefix else None
            requests = [Request(tuple(words(n, n)), cache) for n in (5, 9)]
            with torch.no_grad():
                found, _ = engine._forward(requests, keep=5)
            logits.append(found.float().cpu())
        assert torch.allclose(logits[0], logits[1], atol=2e-3)


def test_a_cache_moves_to_the_gpu_that_receives_it():
    cpu, gpu = tiny_engine(), make_engine(tiny_model().to("cuda"), "gpu")
    request = Request(tuple(words(6)), cpu.prefill(words(12)), max_new_tokens=5)
    assert gpu.generate([request])[0].token_ids == cpu.generate([request])[0].token_ids


def test_half_precision_on_the_gpu_answers_a_ragged_batch_as_one_by_one():
    gpu = make_engine(tiny_model().to("cuda", torch.bfloat16), "gpu")
    shared = gpu.prefill(words(30, 1))
    requests = [Request(tuple(words(n, n)), shared, max_new_tokens=1) for n in (3, 8, 8)]
    together = gpu.generate(requests)
    assert [g.token_ids for g in together] == [gpu.generate([r])[0].token_ids for r in requests]
