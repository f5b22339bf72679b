"""Joint compression of keys and values by principal components: of each layer, then across the layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from agentflow.adapters.closed_form import Moments, principal
from agentflow.adapters.lcf import state_widths
from agentflow.kv.geometry import Geometry


class Compressor(nn.Module):
    """States of several layers `(T, width)` to `(T, size)`, and back to each layer's components.

    Args:
        layers: the layers that are looked at.
        components: numbers of each layer.
        joint: share of all these numbers that is kept across the layers; 1: all, as they are.

    Attributes:
        size: numbers a position.
    """

    def __init__(self, geometry: Geometry, layers: Sequence[int], components: int, joint: float) -> None:
        super().__init__()
        widths = state_widths(geometry)
        self.layers = list(layers)
        self.components = [min(components, widths[n]) for n in self.layers]
        self.means = nn.ParameterList(torch.zeros(widths[n]) for n in self.layers)
        self.first = nn.ParameterList(
            _directions(widths[n], c) for n, c in zip(self.layers, self.components, strict=True)
        )
        total = sum(self.components)
        self.size = total if joint == 1 else max(1, round(total * joint))
        self.second = None if joint == 1 else nn.Parameter(_directions(total, self.size))

    def parts(self, rows: Sequence[Tensor]) -> dict[int, Tensor]:
        """Each layer's components `(T, components)`."""
        triples = zip(self.layers, self.means, self.first, strict=True)
        return {n: (rows[n].to(mean) - mean) @ directions for n, mean, directions in triples}

    def forward(self, rows: Sequence[Tensor]) -> Tensor:
        """All layers' states in `size` numbers a position."""
        joined = torch.cat(list(self.parts(rows).values()), dim=-1)
        return joined if self.second is None else joined @ self.second

    def spread(self, codes: Tensor) -> dict[int, Tensor]:
        """Each layer's components for `codes (T, size)`."""
        joined = codes if self.second is None else codes @ self.second.T
        return dict(zip(self.layers, joined.split(self.components, dim=-1), strict=True))  # type: ignore[no-untyped-call]

    def moments(self, stage: int) -> list[Moments]:
        """Empty sums: first of each layer's states, then of all layers' components side by side."""
        if stage == 0:
            return [Moments(len(mean), 0) for mean in self.means]
        return [Moments(sum(self.components), 0)] if self.second is not None else []

    def take(self, stage: int, moments: Sequence[Moments], rows: Sequence[Tensor]) -> None:
        """Take in a text's states, per layer of the model."""
        seen = [rows[n] for n in self.layers] if stage == 0 else [torch.cat(list(self.parts(rows).values()), dim=-1)]
        for one, states in zip(moments, seen, strict=False):
            one.add(states, states[:, :0])

    @torch.no_grad()
    def settle(self, stage: int, moments: Sequence[Moments]) -> None:
        """Set the directions to the principal components of what was taken in."""
        if stage == 0:
            for mean, directions, seen in zip(self.means, self.first, moments, strict=True):
                mean.copy_(seen.sums / seen.count)
                directions.copy_(principal(seen.covariance(), directions.shape[1]))
        elif self.second is not None:
            self.second.copy_(principal(moments[0].covariance(), self.size))


def _directions(width: int, count: int) -> nn.Parameter:
    """Orthonormal columns `(width, count)`."""
    drawn = torch.randn(width, count)
    # In rows, as it comes back from a file: fused optimizers pair a weight with its moments by their places in memory.
    return nn.Parameter(drawn if drawn.is_meta else torch.linalg.qr(drawn)[0].contiguous())
