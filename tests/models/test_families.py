"""Every family: a cache is worth exactly what recomputing is worth, alone and in ragged batches."""

from __future__ import annotations

import pytest
import torch

from agentflow.kv.rope import shift
from agentflow.models.plan import Plan, planned
from agentflow.models.requests import Request
from tests.tiny import FAMILIES, make_engine, tiny_engine, tiny_model, words

families = pytest.mark.parametrize("family", sorted(FAMILIES))
TOLERANCE = 1e-4


def eager_logits(family: str, ids: list[int]) -> torch.Tensor:
    """The reference: transformers' own eager attention over the whole sequence, no cache, in float64.

    (Experts stay in float32: PyTorch's grouped product has no float64.)
    """
    model = tiny_model(family)
    if family not in ("mixtral", "qwen3-moe"):
        model = model.double()
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def our_logits(family: str, prefix: list[int], ids: list[int]) -> torch.Tensor:
    engine = tiny_engine(family)
    cache = engine.prefill(prefix) if prefix else None
    with torch.no_grad():
        logits, _ = engine._forward([Request(tuple(ids), cache)], keep=len(ids))
    return logits[0]


@families
def test_logits_equal_eager_attention_in_double_precision(family):
    ids = words(40)
    assert torch.allclose(our_logits(family, [], ids), eager_logits(family, ids), atol=TOLERANCE)


@families
def test_logits_on_a_cache_equal_those_of_the_whole_text(family):
    ids = words(40)
    reference = eager_logits(family, ids)
    for cut in (1, 17, 39):
        assert torch.allclose(our_logits(family, ids[:cut], ids[cut:]), reference[cut:], atol=TOLERANCE)


@families
def test_greedy_answers_equal_transformers_generate(family):
    ids = words(23, seed=3)
    model = tiny_model(family)
    with torch.no_grad():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, eos_token_id=None)
    engine = tiny_engine(family)
    engine_ids = engine._end_ids
    try:
        engine._end_ids = frozenset()
        got = engine.generate([Request(tuple(ids), max_new_tokens=12)])[0]
    finally:
        engine._end_ids = engine_ids
    assert list(got.token_ids) == expected[0, len(ids) :].tolist()


@families
def test_a_ragged_batch_equals_one_by_one(family):
    engine = tiny_engine(family)
    shared, own = engine.prefill(words(30, seed=1)), engine.prefill(words(9, seed=2))
    requests = [
        Request(tuple(words(5, seed=4)), shared, max_new_tokens=9, keep_cache=True),
        Request(tuple(words(17, seed=5)), None, max_new_tokens=4, keep_cache=True),
        Request(tuple(words(1, seed=6)), shared, max_new_tokens=14, keep_cache=True),
        Request(tuple(words(8, seed=7)), own, max_new_tokens=1, keep_cache=True),
        Request(tuple(words(11, seed=8)), shared, max_new_tokens=0, keep_cache=True),
    ]
    together = engine.generate(requests)
    for request, batched in zip(requests, together, strict=True):
        alone = engine.generate([request])[0]
        assert batched.token_ids == alone.token_ids
        assert batched.finish == alone.finish
        for a, b in zip(batched.cache.keys, alone.cache.keys, strict=True):
            assert torch.allclose(a, b, atol=TOLERANCE)
        assert torch.equal(batched.cache.positions, alone.cache.positions)


@families
def test_a_shifted_cache_equals_a_fresh_prefill_at_the_new_position(family):
    engine = tiny_engine(family)
    ids = words(10)
    gap = 7
    moved = shift(engine.prefill(ids), gap, engine.loaded.ropes)
    positions = torch.arange(gap, gap + len(ids))[None]
    with torch.no_grad(), planned(Plan((), positions)):
        output = engine.loaded.model(input_ids=torch.tensor([ids]), position_ids=positions, use_cache=True)
    layers = (getattr(output, "cache", None) or output.past_key_values).layers
    for k, layer in zip(moved.keys, layers, strict=True):
        assert torch.allclose(k, layer.keys[0], atol=TOLERANCE)
    assert moved.next_position == gap + len(ids)


@families
def test_the_fingerprint_has_the_shapes_of_a_real_cache(family):
    engine = tiny_engine(family)
    assert engine.prefill(words(3)).geometry == engine.fingerprint.geometry


@families
def test_different_weights_have_different_fingerprints(family):
    one, other = tiny_engine(family), make_engine(tiny_model(family, seed=9), "other")
    assert [d.split(" ")[0] for d in one.fingerprint.differences(other.fingerprint)] == ["weights"]
