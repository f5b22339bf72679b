"""Where a training is: weights, Adam's moments, the best weights so far, in one sealed file that is whole or absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentflow.errors import AdapterError, PayloadError
from agentflow.kv.sealed import read_sealed, write_sealed


@dataclass(eq=False)
class State:
    """What a training goes on from.

    Attributes:
        step: how many steps are done.
        log: one row a step, {step, loss, rate, tokens}, and {step, nll, exact} for each validation.
        best: the weights of the best validation, and `best_score` its (exact, -nll).
        since: validations since then.
    """

    step: int = 0
    log: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_score: tuple[float, float] | None = None
    since: int = 0


def save_state(path: Path, mark: str, state: State, adapter: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write where a training is; `mark` says which training."""
    tensors = {f"weight.{name}": t.detach() for name, t in adapter.state_dict().items()}
    tensors |= {f"best.{name}": t for name, t in state.best.items()}
    for number, moments in optimizer.state_dict()["state"].items():  # none of a weight that no step has needed yet
        tensors |= {f"optimizer.{number}.{name}": t for name, t in moments.items()}
    content = {
        "mark": mark,
        "step": state.step,
        "log": state.log,
        "best_score": state.best_score,
        "since": state.since,
    }
    write_sealed(path, tensors, content, None)


def load_state(path: Path, mark: str, adapter: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Go on from a file; a new training where there is none.

    Raises:
        AdapterError: the file is damaged, or of another training.
    """
    if not path.exists():
        return State()
    try:
        sealed = read_sealed(path, None)
        content: Mapping[str, Any] = sealed.content
        if content["mark"] != mark:
            raise AdapterError(
                "This folder holds another training: its recipe, its data or its models differ.",
                where=str(path.parent),
                fix="Choose another --work, or remove the folder.",
            )
        adapter.load_state_dict(named(sealed.tensors, "weight."))
        saved = optimizer.state_dict()
        for place, t in named(sealed.tensors, "optimizer.").items():
            number, _, name = place.partition(".")
            saved["state"].setdefault(int(number), {})[name] = t.clone()
        optimizer.load_state_dict(saved)
        score = content["best_score"]
        return State(
            content["step"],
            list(content["log"]),
            {name: t.clone() for name, t in named(sealed.tensors, "best.").items()},
            tuple(score) if score else None,
            content["since"],
        )
    except (PayloadError, LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise AdapterError(
            f"The checkpoint can't be used: {error}.", where=str(path), fix="Remove it to begin again."
        ) from None


def named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin like that, without this beginning."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
