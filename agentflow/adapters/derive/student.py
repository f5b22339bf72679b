"""A model with layers left out: its upper part, which learns, and the whole, which is saved.

Below the first layer that is left out the new model is the teacher, so only what stands above is built for learning;
it goes on from the hidden states that the teacher has there.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agentflow.errors import ModelError
from agentflow.models.quiet import quiet_transformers

_LAYER = re.compile(r"(?<![^.])layers\.(\d+)\.")


class Student:
    """What is left of a teacher.

    Args:
        teacher: a transformers model, frozen; it stays as it is.
        leave_out: numbers of layers, ascending.

    Raises:
        ModelError: a layer that the teacher doesn't have, all of them, or an architecture that can't be cut.
    """

    def __init__(self, teacher: Any, leave_out: Sequence[int]) -> None:
        count = int(teacher.config.num_hidden_layers)
        if leave_out[-1] >= count:
            raise ModelError(f"There is no layer {leave_out[-1]} to leave out: the teacher has {count}, from 0.")
        if len(leave_out) == count:
            raise ModelError(f"All {count} layers are left out.", fix="Keep some.")
        self.teacher = teacher
        self.first = leave_out[0]
        """The first layer that is left out; hidden states below it are the teacher's."""
        self.kept = [n for n in range(count) if n not in leave_out]
        self._upper = [n for n in self.kept if n > self.first]
        self.upper = _built(teacher, self._upper)
        names = [name for name, _ in self.upper.named_parameters() if _LAYER.search(name)]
        norms = [name for name, _ in self.upper.named_parameters() if re.search(r"(^|[._])norm[._]", name)]
        if self._upper and not names:
            raise ModelError(f"Layers of the model type '{teacher.config.model_type}' can't be left out.")
        learnt = dict.fromkeys([*names, *norms])
        for name, parameter in self.upper.named_parameters():
            parameter.requires_grad_(name in learnt)
        parts = {name.replace(".", "/"): p for name, p in self.upper.named_parameters() if name in learnt}
        self.learnt = nn.ParameterDict(parts)

    def logits(self, hidden: Tensor) -> Tensor:
        """What the new model says `(B, T, vocabulary)` behind hidden states `(B, T, width)` below its upper part."""
        found: Tensor = self.upper(inputs_embeds=hidden, use_cache=False).logits
        return found

    def whole(self) -> Any:
        """The new model, with what was learnt."""
        model = _built(self.teacher, self.kept)
        new = {name.replace("/", "."): p.detach() for name, p in self.learnt.items()}
        above = len(self.kept) - len(self._upper)
        model.load_state_dict(_renumbered(new, {n: n + above for n in range(len(self._upper))}), strict=False)
        return model.eval()


def _built(teacher: Any, layers: Sequence[int]) -> Any:
    """A model of some of the teacher's layers, in memory of its own."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(teacher.config)
    count = int(config.num_hidden_layers)
    config.num_hidden_layers = len(layers)
    for name, value in vars(config).items():  # what is told of each layer: kinds of attention, and the like
        if isinstance(value, list) and len(value) == count:
            setattr(config, name, [value[n] for n in layers])
    with quiet_transformers(), torch.random.fork_rng():
        model = AutoModelForCausalLM.from_config(
            config, dtype=teacher.dtype, attn_implementation=teacher.config._attn_implementation
        )
    model.load_state_dict(_renumbered(teacher.state_dict(), {old: new for new, old in enumerate(layers)}))
    return model.to(teacher.device).eval().requires_grad_(False)


def _renumbered(tensors: Mapping[str, Tensor], numbers: Mapping[int, int]) -> dict[str, Tensor]:
    """Tensors of these layers and of none, under the new numbers."""
    found = {}
    for name, tensor in tensors.items():
        layer = _LAYER.search(name)
        if layer is None:
            found[name] = tensor
        elif (number := int(layer[1])) in numbers:
            found[_LAYER.sub(f"layers.{numbers[number]}.", name, count=1)] = tensor
    return found
