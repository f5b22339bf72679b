"""Gradients flow from an engine's logits into the caches it stands on, and are those of the plain model."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache

from agentflow.kv.cache import KVCache
from agentflow.models.requests import Request
from tests.tiny import FAMILIES, make_engine, tiny_engine, tiny_model, words


def needing_gradients(cache: KVCache) -> KVCache:
    keys, values = ([t.detach().clone().requires_grad_() for t in part] for part in (cache.keys, cache.values))
    return replace(cache, keys=tuple(keys), values=tuple(values), _arena=None)


def loss(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(dim=-1)[..., 7].mean()


@pytest.mark.parametrize("family", [name for name in FAMILIES if "sliding" not in name and "gemma" not in name])
def test_gradients_of_a_prefix_are_those_of_transformers_own_attention(family):
    engine, plain = tiny_engine(family), tiny_model(family)
    prefix, suffix = needing_gradients(engine.prefill(words(9))), words(4, seed=1)
    loss(engine.logits([Request(tuple(suffix), prefix)], keep=3)).backward()
    pairs = [(k.detach()[None].requires_grad_(), v.detach()[None].requires_grad_()) for k, v in zip(
        prefix.keys, prefix.values, strict=True)]  # fmt: skip
    name = "cache" if "cache" in inspect.signature(plain.forward).parameters else "past_key_values"
    out = plain(
        torch.tensor([suffix]), position_ids=torch.arange(9, 13)[None], **{name: DynamicCache(pairs)}, use_cache=True
    )
    loss(out.logits[:, -3:]).backward()
    for own, (key, value) in zip(zip(prefix.keys, prefix.values, strict=True), pairs, strict=True):
        for mine, theirs in zip(own, (key.grad, value.grad), strict=True):
            torch.testing.assert_close(mine.grad, theirs[0], atol=1e-5, rtol=1e-3)


def test_gradients_of_a_ragged_batch_are_those_of_its_rows():
    engine = make_engine(tiny_model(), "gradients")
    rows = [(needing_gradients(engine.prefill(words(n, seed=n))), words(m, seed=m)) for n, m in ((5, 6), (11, 3))]
    together = engine.logits([Request(tuple(ids), prefix) for prefix, ids in rows], keep=2)
    loss(together).backward()
    for n, (prefix, ids) in enumerate(rows):
        alone = needing_gradients(prefix)
        row = engine.logits([Request(tuple(ids), alone)], keep=2)
        torch.testing.assert_close(together[n], row[0], atol=1e-5, rtol=1e-4)
        (loss(row) / 2).backward()
        torch.testing.assert_close(prefix.keys[0].grad, alone.keys[0].grad, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("trained", ["bias", "bias and keys"])
def test_gradients_of_a_prefix_bias_are_its_finite_differences(trained):
    engine = make_engine(tiny_model().double(), "bias")
    prefix, suffix = engine.prefill(words(9)), tuple(words(4, seed=1))
    prefix = needing_gradients(prefix) if "keys" in trained else prefix

    def by(log: torch.Tensor) -> torch.Tensor:
        bias = tuple(log.expand(k.shape[:2]) for k in prefix.keys)
        return loss(engine.logits([Request(suffix, replace(prefix, bias=bias, _arena=None))], keep=3))

    log, step = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True), 0.1
    by(log).backward()
    with torch.no_grad():
        slope = (by(log + step) - by(log - step)) / (2 * step)
    assert log.grad is not None
    torch.testing.assert_close(log.grad.float(), slope, atol=1e-4, rtol=0.02)
