"""The rotary embedding of each layer of a model, read from the model itself."""

from __future__ import annotations

from typing import Any

import torch
from blake3 import blake3

from agentflow.kv.rope import Rope
from agentflow.models.families import text_config

# Families whose rotary pairs are neighbours instead of halves.
_INTERLEAVED = {"cohere", "cohere2", "glm", "glm4", "gptj", "codegen", "ernie4_5", "llama4_text", "helium"}


def ropes_of(model: Any) -> tuple[Rope | None, ...]:
    """One `Rope` per layer, None for layers without one (`no_rope_layers`, or absolute positions).

    Frequencies come from the model's own buffers, so every scaling (linear, Llama 3, YaRN, LongRoPE) is in them.
    """
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
    return tuple(ropes)


def _frequencies(model: Any) -> dict[str, torch.Tensor]:
    """Inverse frequencies by layer kind; "" is the kind of every layer that has none of its own."""
    found: dict[str, torch.Tensor] = {}
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


def rope_digest(ropes: tuple[Rope | None, ...]) -> str:
    """A digest of all layers' frequencies, for the fingerprint of a model."""
    hasher = blake3()
    for rope in ropes:
        if rope is None:
            hasher.update(b"none")
        else:
            hasher.update(bytes([rope.interleaved]) + rope.inv_freq.contiguous().numpy().tobytes())
    return hasher.hexdigest()[:16]
