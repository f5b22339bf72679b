"""Loading a model for serving: device, number format, attention, and the fingerprint that its caches carry."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from blake3 import blake3

from agentflow.errors import ModelError
from agentflow.folders import cache_root
from agentflow.kv.cache import Geometry
from agentflow.kv.payload import Fingerprint
from agentflow.kv.rope import Rope
from agentflow.models import attention
from agentflow.models.embedded import Progress, fetch, local_config, silent
from agentflow.models.families import has_windows, max_positions, require_plain_cache, text_config
from agentflow.models.quiet import quiet_transformers
from agentflow.models.rotary import rope_digest, ropes_of
from agentflow.models.spec import ModelSpec

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready to run.

    Attributes:
        model: the transformers model, in evaluation mode, gradients off.
        tokenizer: its tokenizer.
        ropes: per layer its rotary embedding, None where it has none.
    """

    spec: ModelSpec
    model: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    fingerprint: Fingerprint
    ropes: tuple[Rope | None, ...]


def load_model(spec: ModelSpec, progress: Progress = silent) -> LoadedModel:
    """Fetch (where needed) and load `spec`.

    Raises:
        ModelError: not to be had, not a causal language model, or an architecture that can't be served.
    """
    folder = fetch(spec, progress)
    progress(f"loading {spec.model}", None)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    device = choose_device(spec.device)
    dtype = choose_dtype(spec.dtype, device)
    attention.register()
    placement: dict[str, Any] = {"device_map": spec.device_map} if spec.device_map else {}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(str(folder))
            require_plain_cache(config)
            model = AutoModelForCausalLM.from_pretrained(
                str(folder), config=config, dtype=dtype, attn_implementation=attention.NAME, **placement
            )
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"The model '{spec.model}' can't be loaded: {str(error).strip().splitlines()[0]}") from error
    if not spec.device_map:
        model = model.to(device)
    return prepare(spec, model, tokenizer, weights=_digest_of_files(folder))


def prepare(spec: ModelSpec, model: Any, tokenizer: Any, *, weights: str | None = None) -> LoadedModel:
    """Make a transformers model that is already in memory ready to serve (tests, derived models).

    Args:
        weights: digest of the weights where it is known from files; otherwise it is taken from memory.
    """
    require_plain_cache(model.config)
    attention.install(model)
    model = model.eval().requires_grad_(False)
    ropes = ropes_of(model)
    parameter = next(model.parameters())
    fingerprint = Fingerprint(
        model=spec.model,
        geometry=geometry_of(model.config),
        weights=weights or _digest_of_memory(model),
        tokenizer=_digest_of_tokenizer(tokenizer),
        rope=rope_digest(ropes),
    )
    return LoadedModel(spec, model, tokenizer, parameter.device, parameter.dtype, fingerprint, ropes)


def geometry_of(config: Any) -> Geometry:
    """The cache shapes of a configuration."""
    inner = text_config(config)
    heads = getattr(inner, "num_key_value_heads", None) or inner.num_attention_heads
    width = getattr(inner, "head_dim", None) or inner.hidden_size // inner.num_attention_heads
    return Geometry(((int(heads), int(width), int(width)),) * int(inner.num_hidden_layers))


def local_geometry(spec: ModelSpec) -> Geometry | None:
    """The cache shapes of a model whose configuration is on this machine; None where it is not. Reads no weights."""
    return _of_local_config(spec, geometry_of)


def local_windows(spec: ModelSpec) -> bool | None:
    """Whether such a model has layers that see only a window of positions; None where that is not known yet."""
    return _of_local_config(spec, has_windows)


def local_positions(spec: ModelSpec) -> int | None:
    """How many positions such a model has; None where that is not known yet, or not said."""
    return _of_local_config(spec, max_positions)


def _of_local_config(spec: ModelSpec, what: Callable[[Any], T]) -> T | None:
    path = local_config(spec)
    if path is None:
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return what(SimpleNamespace(**(raw.get("text_config") or raw)))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def choose_device(wanted: str) -> torch.device:
    """`auto` is CUDA where there is one, then Apple's MPS, then the CPU."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ModelError(f"Unknown device '{wanted}'.", fix="Use auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"The device '{wanted}' is asked for, but CUDA is not available here.", fix="Use device: auto."
        )
    return device


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on an accelerator and float32 on a CPU (bfloat16 is 20 x slower on many of them)."""
    if wanted == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, wanted)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _digest_of_files(folder: Path) -> str:
    """BLAKE3 over the weight files, remembered by path, size and time: 28 GB need not be read at every start."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no safetensors weights.", fix="Convert the model to safetensors first.")
    stamps = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    stamp = blake3(json.dumps(stamps).encode()).hexdigest()
    memo = cache_root() / "digests" / stamp
    if memo.is_file():
        return memo.read_text()
    hasher = blake3(max_threads=blake3.AUTO)
    for file in files:
        hasher.update_mmap(file)
    digest = hasher.hexdigest()
    memo.parent.mkdir(parents=True, exist_ok=True)
    part = memo.with_suffix(f".{os.getpid()}.part")
    part.write_text(digest)
    part.replace(memo)
    return digest


def _digest_of_memory(model: Any) -> str:
    hasher = blake3()
    for name, tensor in sorted(model.state_dict().items()):
        hasher.update(name.encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def _digest_of_tokenizer(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    template = getattr(tokenizer, "chat_template", None)
    return blake3(text.encode() + json.dumps(template, sort_keys=True).encode()).hexdigest()
