"""Which architectures can hand over a plain per-position cache, and a refusal by name for those that can't."""

from __future__ import annotations

from typing import Any

from agentflow.errors import ModelError

_TEXT_FALLBACK = "Use a decoder-only attention model, or run this one behind the text channel elsewhere."


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the language model (some wrap it for images)."""
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def require_plain_cache(config: Any) -> None:
    """Refuse architectures whose state is not one key and one value for each position, head and layer.

    Raises:
        ModelError: an encoder-decoder, a model with multi-head latent attention, or one with linear-attention,
            state-space or convolution layers; the message names the model type and the reason.
    """
    reason = _reason(config)
    if reason:
        raise unserved(config, reason)


def unserved(config: Any, reason: str) -> ModelError:
    """The refusal of an architecture."""
    return ModelError(f"The model type '{config.model_type}' can't be served: {reason}.", fix=_TEXT_FALLBACK)


def has_windows(config: Any) -> bool:
    """Whether some layers of a configuration see only a window of positions."""
    inner = text_config(config)
    kinds = getattr(inner, "layer_types", None)
    if kinds:
        return any("sliding" in str(kind) for kind in kinds)
    is_used = getattr(inner, "use_sliding_window", not str(getattr(inner, "model_type", "")).startswith("qwen"))
    return bool(getattr(inner, "sliding_window", None) and is_used)


def max_positions(config: Any) -> int | None:
    """How many positions a model was trained for, where its configuration says."""
    limit = getattr(text_config(config), "max_position_embeddings", None)
    return int(limit) if limit else None


def _reason(config: Any) -> str | None:
    inner = text_config(config)
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder, whose cross-attention cache is not a prefix of its output"
    if getattr(inner, "kv_lora_rank", None):
        return "it uses multi-head latent attention, whose cache is a joint latent, not keys and values per head"
    if any("chunked" in str(kind) for kind in getattr(inner, "layer_types", None) or ()):
        return "its chunked attention forgets positions by blocks, which a joined cache would shift"
    odd = sorted({str(kind) for kind in getattr(inner, "layer_types", None) or () if "attention" not in str(kind)})
    linear = sorted({str(kind) for kind in getattr(inner, "layer_types", None) or () if "linear" in str(kind)})
    if linear or odd:
        return f"its layers of the kind {', '.join(linear or odd)} keep a state that can't be cut at a position"
    if getattr(inner, "state_size", None) or getattr(inner, "mamba_d_state", None) or inner.model_type == "rwkv":
        return "it keeps a recurrent state, which can't be cut at a position"
    return None
