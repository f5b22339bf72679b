"""A smaller bundle of a trained one: only the layers whose gates ask most for their change keep it."""

from __future__ import annotations

import torch
from torch import Tensor

from agentflow.adapters.base import Adapter, make_adapter
from agentflow.adapters.lcf_aligned import LCFAligned
from agentflow.adapters.lcf_pooled import LCFPooled
from agentflow.errors import AdapterError


def prune(adapter: Adapter, layers: int) -> Adapter:
    """The adapter with so many of its layers, those with the largest gate logits (the paper keeps 9 of 28).

    Raises:
        AdapterError: its layers have no changes of their own to leave out, or there are fewer.
    """
    if not isinstance(adapter, LCFAligned | LCFPooled):
        raise AdapterError(
            f"The layers of '{adapter.name}' can't be left out.", fix="Prune an 'lcf_aligned' or an 'lcf_pooled'."
        )
    gates = adapter.gates.gate.detach()
    if not 1 <= layers <= len(gates):
        raise AdapterError(f"It has {len(gates)} layers, so {layers} of them can't be kept.")
    kept = sorted(gates.amax(dim=1).topk(layers).indices.tolist())
    only = [adapter.pairs[n][0] for n in kept]
    arguments = adapter.arguments.model_dump(mode="json") | {"only": only}
    smaller = make_adapter(adapter.name, adapter.sender, adapter.receiver, arguments, meta=True)
    smaller.load_state_dict(_of_layers(adapter.state_dict(), kept), assign=True)
    return smaller.eval()


def _of_layers(state: dict[str, Tensor], kept: list[int]) -> dict[str, Tensor]:
    """The weights of these layers, under their new numbers."""
    found = {"gates.gate": state["gates.gate"][torch.tensor(kept)]}
    for new, old in enumerate(kept):
        prefix = f"layers.{old}."
        found |= {f"layers.{new}.{n.removeprefix(prefix)}": t for n, t in state.items() if n.startswith(prefix)}
    return found
