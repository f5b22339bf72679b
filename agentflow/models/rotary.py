"""The rotary embedding of each layer of a model, read from the model and checked by what it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from agentflow.kv.rope import Fixed, Rope, turn
from agentflow.models.families import text_config, unserved
from agentflow.models.plan import Plan, planned

# Families whose rotary pairs are neighbours instead of halves; where one is missing here, it is found out.
_INTERLEAVED = {"cohere", "cohere2", "glm", "glm4", "gptj", "codegen", "ernie4_5", "llama4_text", "helium"}
_TOKENS = range(5, 9)
_AWAY = 61
"""Positions between two looks at a token: far enough to tell embeddings apart, near enough for every model."""
_CLOSE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 1e-2}
"""Largest difference of keys, as a share of their size, by the number format of a model; 4e-2 in others."""


def ropes_of(model: Any) -> tuple[Rope | None, ...]:
    """One `Rope` per layer, None for layers without one, `Fixed` where keys turn by none that is known.

    Frequencies come from the model's own buffers, so every scaling (linear, Llama 3, YaRN, LongRoPE) is in them. Which
    layer has which, and how its pairs lie, is what the configuration says if keys at two positions agree with that, and
    else whatever they agree with.

    Raises:
        ModelError: the model's attention is not the one that was installed, or layers share their keys.
    """
    here, there = _keys_at(model, 0), _keys_at(model, _AWAY)
    least = _CLOSE.get(here[0].dtype, 4e-2)
    others, found, known = list(_others(model)), list[Rope | None](), False
    for declared, near, far in zip(_declared(model), here, there, strict=True):
        fitting = [rope for rope in (declared, *others) if _misses(rope, near, far) < least]
        found.append(fitting[0] if fitting else declared)
        known = known or bool(fitting)
    return tuple(found) if known else (Fixed(),) * len(found)


def rope_digest(ropes: tuple[Rope | None, ...]) -> str:
    """A digest of all layers' frequencies, for the fingerprint of a model."""
    hasher = blake3()
    for rope in ropes:
        if rope is None:
            hasher.update(b"none")
        else:
            hasher.update(bytes([rope.interleaved]) + rope.inv_freq.contiguous().numpy().tobytes())
    return hasher.hexdigest()[:16]


def _declared(model: Any) -> list[Rope | None]:
    """The embedding of each layer as the configuration has it."""
    config = text_config(model.config)
    layers = int(config.num_hidden_layers)
    interleaved = config.model_type in _INTERLEAVED
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * layers)
    uses = list(getattr(config, "no_rope_layers", None) or [1] * layers)
    found = _frequencies(model)
    ropes: list[Rope | None] = []
    for kind, used in zip(kinds, uses, strict=True):
        inv_freq = found.get(str(kind), found.get(""))
        ropes.append(Rope(inv_freq, interleaved) if used and inv_freq is not None else None)
    return ropes


def _others(model: Any) -> Iterator[Rope | None]:
    """What else a layer may have: nothing, other pairs, the other way round (nanochat), another kind's frequencies."""
    yield None
    for inv_freq in _frequencies(model).values():
        yield from (Rope(inv_freq), Rope(inv_freq, interleaved=True), Rope(-inv_freq))


def _misses(rope: Rope | None, near: Tensor, far: Tensor) -> float:
    """How far keys `(B, kv_heads, 1, dim)` that are turned by an embedding are from where the model has them."""
    if rope is not None and rope.rotary_dim > near.shape[-1]:
        return float("inf")
    (turned,) = turn([near], _AWAY, [rope])
    return float((turned - far).float().norm() / far.float().norm().clamp_min(1e-12))


def _keys_at(model: Any, position: int) -> Sequence[Tensor]:
    """Keys `(B, kv_heads, 1, dim)` of some tokens, each alone at a position, layer by layer.

    A token that sees nothing but itself is the same in every layer wherever it stands, but for its own key.
    """
    layers = int(text_config(model.config).num_hidden_layers)
    ids = torch.tensor([[token] for token in _TOKENS], device=next(model.parameters()).device)
    positions, seen = torch.full_like(ids, position), dict[int, Tensor]()
    with torch.no_grad(), planned(Plan((), positions, capture=seen)):
        output = model(input_ids=ids, position_ids=positions, use_cache=True)
    cache = getattr(output, "cache", None) or output.past_key_values
    if sorted(seen) != list(range(layers)):
        raise unserved(model.config, "its attention is its own, and can't be replaced by one that takes prefixes")
    keys = [layer.keys for layer in cache.layers if layer.keys is not None]
    if len(keys) != layers:
        raise unserved(model.config, f"its {layers} layers share the keys of {len(keys)}")
    return keys


def _frequencies(model: Any) -> dict[str, Tensor]:
    """Inverse frequencies by layer kind; "" is the kind of every layer that has none of its own."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        leaf = name.rsplit(".", 1)[-1]
        if "rotary" not in leaf or "vision" in name or "visual" in name:
            continue
        for buffer_name, buffer in module.named_buffers(recurse=False):
            if buffer_name.endswith("inv_freq") and "original" not in buffer_name:
                kind = buffer_name.removesuffix("inv_freq").rstrip("_")
                if leaf == "rotary_emb_local":  # Gemma 3 before transformers 5
                    kind = "sliding_attention"
                found.setdefault(kind, buffer.detach().float().cpu().clone())
    return found
