"""An adapter's codes in few bits, as named tensors that travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from agentflow.errors import PayloadError
from agentflow.kv.packing import Grouped, group_quantize

GROUP = 32
"""Neighbours that share scale and zero point. With 64, four bits of a mapped cache cost 0.07 nats a token; so 0.01."""
CodeBits = Literal[4, 8, 16]
"""Of a number on the wire; 16 is half precision."""


def pack(codes: Mapping[str, Tensor], bits: CodeBits) -> dict[str, Tensor]:
    """The codes `(..., T, d)` in few bits: for each of them a tensor, or three: `NAME:codes`, `:scale` and `:zero`.

    In 4 and 8 bits neighbours along the last axis share scale and zero point, `GROUP` of them (see `kv.packing`).

    Raises:
        PayloadError: a number is infinite or not a number.
    """
    packed: dict[str, Tensor] = {}
    for name, tensor in codes.items():
        if bits == 16:
            packed[name] = tensor.half()
            continue
        small = group_quantize(tensor, bits, -1, GROUP)
        packed |= {f"{name}:codes": small.codes, f"{name}:scale": small.scale, f"{name}:zero": small.zero}
    return packed


def unpack(packed: Mapping[str, Tensor], widths: Mapping[str, int], bits: CodeBits) -> dict[str, Tensor]:
    """What `pack` was given, as float32.

    Args:
        widths: of the last axis, by name; not looked at for 16 bits.

    Raises:
        PayloadError: a part is missing or doesn't fit the others.
    """
    if bits == 16:
        return {name: tensor.float() for name, tensor in packed.items()}
    found = {}
    for name, width in widths.items():
        try:
            codes, scale, zero = (packed[f"{name}:{part}"] for part in ("codes", "scale", "zero"))
            small = Grouped(codes, scale, zero, width, -1, GROUP, bits)
            small.check(codes.shape[:-1])
        except (LookupError, TypeError, ValueError) as error:
            raise PayloadError(f"The codes '{name}' can't be used: {error}.", fix="Send them again.") from None
        found[name] = small.restore(torch.float32)
    return found
