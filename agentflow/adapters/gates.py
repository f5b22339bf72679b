"""Gates of a receiver's layers: drawn while training, open or shut afterwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

OPEN = 4.0
"""A logit at which a gate is almost always drawn open."""


class LayerGates(nn.Module):
    """One logit for each layer and part (keys, values); shut at first.

    While training a gate is a Gumbel-sigmoid draw between 0 and 1, sharper as the temperature falls; in evaluation it
    is open where its logit is above 0 (arXiv 2510.03215, section 3.3).

    Args:
        layers, parts: how many of each.
    """

    def __init__(self, layers: int, parts: int = 2) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(layers, parts))
        self._open: list[list[bool]] | None = None

    def train(self, mode: bool = True) -> LayerGates:
        """Choose training or evaluation; gates are read again afterwards."""
        self._open = None
        return super().train(mode)

    @property
    def open(self) -> list[list[bool]]:
        """For each layer and part whether it is open; read once, because asking a device stops it."""
        if self._open is None or self.training:
            self._open = self.gate.detach().gt(0).tolist()
        return self._open

    def passed(self, drawn: Tensor | None, layer: int, part: int, new: Tensor) -> Tensor | None:
        """What a gate lets through of `new`: its share by what was drawn, or by None, in evaluation, all or nothing."""
        if drawn is not None:
            return drawn[layer, part] * new
        return new if self.open[layer][part] else None

    def drawn(self, temperature: float) -> Tensor:
        """`(layers, parts)` a draw for every gate: a difference of two Gumbels is logistic."""
        uniform = torch.rand_like(self.gate).clamp(1e-6, 1 - 1e-6)
        drawn: Tensor = ((self.gate + uniform.logit()) / temperature).sigmoid()
        return drawn
