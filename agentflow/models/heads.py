"""A weight for each layer and head of a model, from a file: which heads look where the answer is."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from agentflow.errors import ChannelError


def load_weights(path: Path, scores: Tensor) -> Tensor:
    """Weights `(layers, heads)` from a JSON file `{"weights": [[…], …]}`.

    Args:
        scores: `(layers, heads, T)`, whose shape they must fit.

    Raises:
        ChannelError: no such file, not that form, or of another model.
    """
    try:
        found = torch.tensor(json.loads(path.read_text(encoding="utf-8"))["weights"], dtype=torch.float32)
    except OSError as error:
        raise ChannelError(f"The head weights can't be read: {error.strerror}.", where=str(path)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ChannelError(
            f"This is no file of head weights ({error}).",
            where=str(path),
            fix='It holds {"weights": [[a number for each head], … for each layer]}.',
        ) from None
    if found.shape != scores.shape[:2] or bool((found < 0).any()) or float(found.sum()) <= 0:
        raise ChannelError(
            f"Head weights of the shape {tuple(found.shape)} don't fit {tuple(scores.shape[:2])} layers and heads, "
            "or are negative.",
            where=str(path),
        )
    return found


def save_weights(path: Path, weights: Tensor) -> None:
    """Write weights `(layers, heads)`."""
    path.write_text(json.dumps({"weights": [[round(float(w), 6) for w in row] for row in weights]}) + "\n")
