"""Which of the sender's layers says most about each of the receiver's: found on texts that both models read.

Rules by number (`terminal`, `depth`) miss where layers were left out or added. Here every sender's layer predicts every
receiver's by ridge regression on half of the positions, and the one that explains most of the other half is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentflow.adapters.examples import Sample, make_examples
from agentflow.adapters.fitting import same_tokens
from agentflow.adapters.passes import Pair
from agentflow.errors import AdapterError

CLOSEST = "closest"
RIDGE = 0.1
"""Penalty, as a share of the inputs' mean variance."""
POSITIONS = 1024
"""Positions that are read for it, at most. Linear maps are solved among positions, so wide models cost no more."""


def with_layers(arguments: dict[str, Any], pair: Pair, samples: Sequence[Sample]) -> dict[str, Any]:
    """An adapter's arguments, where they say `layers: closest` with the numbers of these layers.

    Raises:
        AdapterError: there are too few positions to tell.
    """
    if arguments.get("layers") != CLOSEST:
        return arguments
    return arguments | {"layers": closest_layers(*positions(pair, samples))}


def positions(pair: Pair, samples: Sequence[Sample]) -> tuple[list[Tensor], list[Tensor]]:
    """Per layer of each model the states `(n, width)` of the same tokens, of as many texts as are needed."""
    found: list[tuple[list[Tensor], list[Tensor]]] = []
    for example in make_examples(samples, pair.sender, pair.receiver):
        with torch.no_grad():
            ((theirs,), (own,)) = pair.read([example])
            found.append(same_tokens(example, theirs, own, pair.ropes))
        if sum(len(rows[0]) for rows, _ in found) >= POSITIONS:
            break
    ends = zip(*found, strict=True)
    theirs_of, own_of = ([torch.cat(layer)[:POSITIONS].float() for layer in zip(*end, strict=True)] for end in ends)
    return theirs_of, own_of


def closest_layers(theirs: Sequence[Tensor], own: Sequence[Tensor], ridge: float = RIDGE) -> tuple[int, ...]:
    """For each of the receiver's layers the number of the sender's that explains most of its variance.

    Args:
        theirs, own: per layer `(n, width)`; rows are the same tokens'.
        ridge: penalty, as a share of the inputs' mean variance.
    """
    n = len(theirs[0])
    if n < 16:
        raise AdapterError(f"{n} positions are too few to find layers that belong together.", fix="Give more texts.")
    seen, unseen = torch.arange(0, n // 2), torch.arange(n // 2, n)
    wanted = [rows.to(theirs[0].device) - rows[seen].mean(0).to(theirs[0].device) for rows in own]
    explained = []
    for rows in theirs:
        centred = rows - rows[seen].mean(0)
        gram = centred[seen] @ centred[seen].T
        penalty = ridge * float(centred[seen].square().sum()) / centred.shape[1]
        gram += torch.eye(len(seen), device=gram.device) * penalty
        maps = torch.linalg.solve(gram.double(), (centred[seen] @ centred[unseen].T).double()).T.float()
        left = [(y[unseen] - maps @ y[seen]).square().sum() / y[unseen].square().sum() for y in wanted]
        explained.append(1 - torch.stack(left))
    return tuple(torch.stack(explained).argmax(0).tolist())
