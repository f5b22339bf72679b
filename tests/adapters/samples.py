"""Small adapters and bundles for tests."""

from __future__ import annotations

from pathlib import Path

import torch

from agentflow.adapters.base import Adapter, make_adapter
from agentflow.adapters.bundle import Bundle, save_bundle
from agentflow.adapters.card import End
from agentflow.models.engine import Engine


def randomised(adapter: Adapter, *, gate: float = 1.0, scale: float = 0.3, seed: int = 0) -> Adapter:
    """An adapter with random weights and every gate at `gate`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * scale
            parameter.copy_(torch.full_like(parameter, gate) if name.endswith(".gate") else drawn)
    return adapter.eval()


def bundle_of(folder: Path, sender: Engine, receiver: Engine, *, gate: float = 1.0, scale: float = 0.1) -> Bundle:
    """A C2C bundle for two engines, with random weights."""
    ends = End.of(sender.loaded), End.of(receiver.loaded)
    marks = sender.fingerprint.geometry, receiver.fingerprint.geometry
    adapter = randomised(make_adapter("c2c", *marks, {"width": 16}), gate=gate, scale=scale)
    return save_bundle(folder, adapter, *ends, recipe={"steps": 3}, metrics={"nll": 1.5}, license="Apache-2.0")
