"""Numbers in few bits: asymmetric group-wise quantisation of one tensor.

Each group of neighbours along one axis gets a scale and a zero point, and its numbers become whole ones between 0
and 2^bits - 1: `x ≈ code * scale + zero`. Four-bit codes are packed in pairs along the last axis, its first half in
the low nibbles and its second half in the high ones, so that packing and unpacking touch memory in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentflow.errors import PayloadError

Bits = Literal[4, 8]
# Between these float16 keeps its full precision for scales and zero points.
_HALF_LEAST, _HALF_MOST = 2.0**-6, 2.0**15


@dataclass(frozen=True, eq=False)
class Grouped:
    """A quantised tensor of `(..., T, d)`.

    Attributes:
        codes: uint8 `(..., T, d)` for 8 bits, `(..., T, ceil(d / 2))` for 4.
        scale, zero: float16 (float32 where float16 can't hold them), one for each group: `(..., ceil(T / group), d)`
            for groups along T (axis -2), `(..., T, ceil(d / group))` for groups along d (axis -1).
        width: d.
        axis: the axis that groups run along.
        group: numbers in a group; the last one may have fewer.
        bits: of a code.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    width: int
    axis: Literal[-2, -1]
    group: int
    bits: Bits

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        return self.codes.nbytes + self.scale.nbytes + self.zero.nbytes

    def check(self, rows: Sequence[int]) -> None:
        """Refuse parts that don't fit each other or a tensor of `(*rows, width)`, before they are computed with.

        Raises:
            ValueError: they don't.
        """
        *batch, n = rows
        stored = self.width if self.bits == 8 else (self.width + 1) // 2
        groups = [*batch, n, self.width]
        groups[self.axis] = -(-groups[self.axis] // max(1, self.group))
        shapes = [list(t.shape) for t in (self.codes, self.scale, self.zero)]
        kinds = self.codes.dtype == torch.uint8 and self.scale.is_floating_point() and self.zero.is_floating_point()
        if self.bits not in (4, 8) or self.group < 1 or shapes != [[*batch, n, stored], groups, groups] or not kinds:
            raise ValueError(f"codes, scales and zero points of {shapes} are no {self.bits}-bit {[*rows, self.width]}")

    def restore(self, dtype: torch.dtype) -> Tensor:
        """The tensor `(..., T, d)` that the codes stand for."""
        codes = self.codes if self.bits == 8 else _unpack(self.codes, self.width)
        n = codes.shape[self.axis]
        scale, zero = (_spread(t.float(), n, self.axis, self.group) for t in (self.scale, self.zero))
        return torch.addcmul(zero, codes.float(), scale).to(dtype)


def group_quantize(tensor: Tensor, bits: Bits, axis: Literal[-2, -1], group: int) -> Grouped:
    """Quantise `(..., T, d)` in groups of `group` along `axis`.

    The error of a number is at most half its group's scale, `(max - min) / (2^bits - 1)`, and the rounding of scale
    and zero point to float16 (2^-11 of the larger of |min| and |max|). A group of equal numbers keeps them to that.

    Raises:
        PayloadError: a number is infinite or not a number.
    """
    x = tensor.detach().float()
    low, high = _extremes(x, axis, group)
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise PayloadError("A cache that holds infinite numbers, or none, can't be quantised.", fix="Send it as it is.")
    top = 2**bits - 1
    half = torch.float16
    largest = max(-float(low.min()), float(high.max())) if low.numel() else 1.0
    narrow = _HALF_LEAST < largest < _HALF_MOST or largest == 0
    zero = low.to(half) if narrow else low
    # Of the rounded zero point, so that its rounding is not an error of the codes as well.
    span = (high - zero.float()) / top
    scale = span.clamp_min(0).to(half) if narrow else span.clamp_min(0)
    n = x.shape[axis]
    inverse = torch.where(scale > 0, 1 / scale.float(), 0.0)
    codes = (x - _spread(zero.float(), n, axis, group)).mul_(_spread(inverse, n, axis, group))
    packed = codes.round_().clamp_(0, top).to(torch.uint8)
    return Grouped(packed if bits == 8 else _pack(packed), scale, zero, x.shape[-1], axis, group, bits)


def _extremes(x: Tensor, axis: int, group: int) -> tuple[Tensor, Tensor]:
    """Least and greatest of each group; the shorter last group by itself, so that nothing is padded."""
    n = x.shape[axis]
    whole = n - n % group
    at = x.ndim + axis
    body = x.narrow(axis, 0, whole).reshape(*x.shape[:at], n // group, group, *x.shape[at + 1 :])
    within = axis if axis == -1 else -2  # where the members of a group stand after that
    low, high = (body.amin(within), body.amax(within)) if whole else _empty(x, axis)
    if n % group:
        rest = x.narrow(axis, whole, n - whole)
        low = torch.cat([low, rest.amin(axis, keepdim=True)], dim=axis)
        high = torch.cat([high, rest.amax(axis, keepdim=True)], dim=axis)
    return low, high


def _empty(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    none = x.narrow(axis, 0, 0)
    return none, none


def _spread(per_group: Tensor, n: int, axis: int, group: int) -> Tensor:
    """One number a group to one a member: `n` along `axis`."""
    if per_group.shape[axis] == 1:
        size = list(per_group.shape)
        size[axis] = n
        return per_group.expand(size)
    return per_group.repeat_interleave(group, dim=axis).narrow(axis, 0, n)


def _pack(codes: Tensor) -> Tensor:
    half = (codes.shape[-1] + 1) // 2
    low, high = codes[..., :half], codes[..., half:]
    packed = low.clone(memory_format=torch.contiguous_format)
    packed[..., : high.shape[-1]] |= high << 4
    return packed


def _unpack(packed: Tensor, width: int) -> Tensor:
    half = packed.shape[-1]
    return torch.cat([packed & 15, packed[..., : width - half] >> 4], dim=-1)
