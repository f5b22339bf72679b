"""A weight for each layer and head of a model: which heads look where an answer is. Kept as JSON files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from agentflow.errors import ChannelError
from agentflow.folders import cache_root
from agentflow.kv.payload import Fingerprint
from agentflow.models.spec import ModelSpec
from agentflow.workflow.library import library_root

FOLDER = "heads"
LARGEST = 8 << 20
"""Bytes of a file of weights; a model of 200 layers x 200 heads has a tenth of it."""


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Weights of a model's heads.

    Attributes:
        weights: `(layers, heads)`, none negative, not all zero.
        source: the model's hub id or folder; "" where unknown.
        digest: of the model's weights; "" where unknown.
        about: how they were found, for people.
        where: the file they came from.
    """

    weights: Tensor
    source: str = ""
    digest: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    where: str = ""

    def fitting(self, scores: Tensor) -> Tensor:
        """The weights, if they fit `scores (layers, heads, T)`.

        Raises:
            ChannelError: they are of another model.
        """
        if self.weights.shape != scores.shape[:2]:
            raise ChannelError(
                f"Head weights of the shape {tuple(self.weights.shape)} don't fit {tuple(scores.shape[:2])} layers "
                "and heads.",
                where=self.where,
                fix="Make them for this model: agentflow calibrate MODEL.",
            )
        return self.weights

    def of(self, spec: ModelSpec, fingerprint: Fingerprint) -> bool:
        """Whether they were made for this model: the same weights, or the same source in another number format."""
        layers = len(fingerprint.geometry.layers)
        same = self.digest == fingerprint.weights or (self.source == spec.source != "")
        return same and self.weights.shape[0] == layers


@lru_cache(maxsize=64)
def find_weights(spec: ModelSpec, fingerprint: Fingerprint) -> HeadWeights | None:
    """The weights of a model: those that were calibrated here, else those that ship; None where there are none."""
    own = own_file(fingerprint)
    folder = library_root() / "configs" / FOLDER
    for path in (*([own] if own.is_file() else []), *sorted(folder.glob("*.json"))):
        found = load_weights(path)
        if found.of(spec, fingerprint):
            return found
    return None


def weights_mark(spec: ModelSpec, path: Path | None = None) -> str:
    """A digest of a file of weights, or else of those that were calibrated here and may be this model's; "" of none."""
    every = sorted((cache_root() / FOLDER).glob("*.json")) if path is None else [path] if path.is_file() else []
    files = [file for file in every if file == path or _may_be_of(file, spec)]
    hasher = blake3()
    for file in files:
        hasher.update(file.name.encode() + file.read_bytes())
    return hasher.hexdigest() if files else ""


def _may_be_of(path: Path, spec: ModelSpec) -> bool:
    try:
        return load_weights(path).source in ("", spec.source)
    except ChannelError:
        return False  # told where it is to be used


def own_file(fingerprint: Fingerprint) -> Path:
    """Where `agentflow calibrate` keeps a model's weights."""
    return cache_root() / FOLDER / f"{fingerprint.weights[:32]}.json"


def load_weights(path: Path) -> HeadWeights:
    """Weights from a JSON file `{"weights": [[…], …], "source": …, "digest": …, "about": {…}}`.

    Raises:
        ChannelError: no such file, or not that form.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError("far too large")
        data = json.loads(path.read_text(encoding="utf-8"))
        weights = torch.tensor(data["weights"], dtype=torch.float32)
        if weights.ndim != 2 or not bool(torch.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
            raise ValueError("a weight is negative or none is above zero")
        named = {name: str(data.get(name, "")) for name in ("source", "digest")}
        about = dict(data.get("about") or {})
    except OSError as error:
        raise ChannelError(f"The head weights can't be read: {error.strerror}.", where=str(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChannelError(
            f"This is no file of head weights ({error}).",
            where=str(path),
            fix='It holds {"weights": [[a number for each head], … for each layer]}.',
        ) from None
    return HeadWeights(weights, **named, about=about, where=str(path))


def save_weights(path: Path, heads: HeadWeights) -> None:
    """Write weights; the file is whole or not there."""
    rows = [[round(float(w), 6) for w in row] for row in heads.weights]
    data = {"source": heads.source, "digest": heads.digest, "about": heads.about, "weights": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=None, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
    find_weights.cache_clear()
