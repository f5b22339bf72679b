"""Rotary embeddings as models really turn their keys, and refusals of models whose attention is out of reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from agentflow.errors import ModelError, PayloadError
from agentflow.kv.fanin import concat
from agentflow.kv.rope import shift
from agentflow.models.plan import Plan, planned
from agentflow.models.requests import Request
from tests.tiny import COMMON, make_engine, tiny_tokenizer, words

OLD = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 512}
# Of what the configuration does not say, or not the same way in each family.
TURNING: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere2": {"sliding_window": 12},  # no embedding in layers without a window
    "exaone4": {"sliding_window": 12, "sliding_window_pattern": 2},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2},  # neighbours
    "glm4": {"partial_rotary_factor": 0.5},
    "nanochat": {},  # the other way round
    "afmoe": {"sliding_window": 12, "num_experts": 4, "num_experts_per_tok": 2},
}
LEARNT: dict[str, dict[str, Any]] = {
    "gpt2": {**OLD, "num_key_value_heads": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "num_key_value_heads": 4},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": (OLD, "attention is its own"),
    "xglm": ({"d_model": 32, "ffn_dim": 48, "num_layers": 4, "attention_heads": 4}, "attention is its own"),
    "gemma3n_text": ({"num_kv_shared_layers": 2}, "layers share the keys"),
}


def model_of(kind: str, fields: dict[str, Any]) -> Any:
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {kind}")
    config = AutoConfig.for_model(kind, **{**COMMON, "vocab_size": len(tiny_tokenizer()), **fields})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


@pytest.mark.parametrize("kind", sorted(TURNING))
def test_a_moved_cache_is_a_fresh_prefill_at_its_new_positions(kind):
    engine = make_engine(model_of(kind, TURNING[kind]), kind)
    ids = words(10)
    moved = shift(engine.prefill(ids), 7, engine.loaded.ropes)
    positions = torch.arange(7, 17)[None]
    with torch.no_grad(), planned(Plan((), positions)):
        output = engine.loaded.model(input_ids=torch.tensor([ids]), position_ids=positions, use_cache=True)
    layers = (getattr(output, "cache", None) or output.past_key_values).layers
    for key, layer in zip(moved.keys, layers, strict=True):
        torch.testing.assert_close(key, layer.keys[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", sorted(TURNING))
def test_they_are_the_same_in_half_the_bits(kind):
    whole, half = (make_engine(model_of(kind, TURNING[kind]).to(t), kind) for t in (torch.float32, torch.bfloat16))
    for one, other in zip(whole.loaded.ropes, half.loaded.ropes, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.interleaved == other.interleaved
            torch.testing.assert_close(one.inv_freq, other.inv_freq, rtol=0.01, atol=0.0)


@pytest.mark.parametrize("kind", sorted(LEARNT))
def test_learnt_positions_are_served_and_never_moved(kind):
    engine = make_engine(model_of(kind, LEARNT[kind]), kind)
    cache, rest = engine.prefill(words(9)), Request(tuple(words(4, seed=1)), max_new_tokens=6)
    whole = Request((*words(9), *rest.token_ids), max_new_tokens=6)
    on_cache = Request(rest.token_ids, cache, max_new_tokens=6)
    assert engine.generate([on_cache])[0].token_ids == engine.generate([whole])[0].token_ids
    with pytest.raises(PayloadError, match="no rotary embedding that is known"):
        concat([cache, cache], engine.loaded.ropes)


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_models_whose_attention_or_cache_is_their_own_are_refused_by_name(kind):
    fields, reason = REFUSED[kind]
    with pytest.raises(ModelError, match=f"'{kind}' can't be served: .*{reason}"):
        make_engine(model_of(kind, fields), kind)
