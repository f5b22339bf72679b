"""The shapes of a cache: what two models must share before one can stand on the other's cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Shapes of one layer's share of a cache, layer by layer: `(kv_heads, key_dim, value_dim)`."""

    layers: tuple[tuple[int, int, int], ...]

    @property
    def scalars_per_position(self) -> int:
        """How many numbers one position costs over all layers, keys and values together."""
        return sum(heads * (key_dim + value_dim) for heads, key_dim, value_dim in self.layers)

    def __str__(self) -> str:
        kinds = sorted(set(self.layers))
        shape = " | ".join(f"{h} KV heads x {k}" + (f"/{v}" if v != k else "") for h, k, v in kinds)
        return f"{len(self.layers)} layers, {shape}"
