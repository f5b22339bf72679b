"""The table of a safetensors file: which bytes are which tensor (https://github.com/huggingface/safetensors).

Written here and not by the library because a payload's head must be filled in after its tensors are hashed, and
because its reader trusts a file's sizes; this one refuses a table that does not describe the file exactly.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from agentflow.errors import PayloadError

MAX_JSON_BYTES = 64 << 20  # the safetensors library itself stops at 100 MB
_WORTH = 4096  # bytes of a part below which copying the whole is quicker than one more block
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def file_head(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> bytes:
    """Eight bytes of length, then the JSON table, padded to eight bytes.

    Raises:
        PayloadError: a tensor's number format has no name in safetensors, or the table is too long to be read.
    """
    table: dict[str, Any] = {"__metadata__": meta}
    offset = 0
    for name, t in tensors.items():
        if t.dtype not in _NAMES:
            raise PayloadError(f"Tensor '{name}' of a payload has the number format {t.dtype}, which can't travel.")
        end = offset + t.numel() * t.element_size()
        table[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_JSON_BYTES:
        raise PayloadError(
            f"This payload holds {len(text):,} bytes of text and settings; {MAX_JSON_BYTES:,} can travel.",
            fix="Send long text as a summary, or settings as tensors.",
        )
    return struct.pack("<Q", len(text)) + text


def filled(head: bytes, name: str, value: str) -> bytes:
    """The head with the 64 characters of the metadata `name` replaced by `value`."""
    mark = f'"{name}":"'.encode()
    at = head.index(mark) + len(mark)  # inside a JSON string the quotes would be escaped
    return head[:at] + value.encode() + head[at + 64 :]


def blocks_of(tensor: Tensor) -> list[memoryview]:
    """The bytes of a tensor in order; copied only from another device or where a head's part is scattered.

    A cache that is still growing is a view of larger buffers: not contiguous as a whole, but head by head.
    """
    tensor = tensor.detach().cpu()
    if not tensor.is_contiguous() and tensor.ndim > 1 and tensor[0].is_contiguous() and tensor[0].nbytes >= _WORTH:
        return [block for part in tensor for block in blocks_of(part)]
    if not tensor.numel():
        return []
    raw: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return [memoryview(raw)]


def tensors_of(raw: mmap.mmap, base: int, table: Mapping[str, Any]) -> dict[str, Tensor]:
    """Views of the mapped file for every entry of its table.

    Raises:
        ValueError: an entry's bytes are not those of its shape, overlap another's, or leave bytes that no entry
            describes.
        LookupError, TypeError: the table is no safetensors table.
    """
    spans, tensors = [], {}
    for name, spec in table.items():
        (start, end), dtype, shape = spec["data_offsets"], _DTYPES[spec["dtype"]], spec["shape"]
        if any(type(n) is not int or n < 0 for n in (start, end, *shape)):
            raise ValueError(f"tensor '{name}' has a size that is no whole number")
        if end - start != prod(shape) * dtype.itemsize:
            raise ValueError(f"tensor '{name}' of shape {shape} can't have {end - start} bytes")
        spans.append((start, end))
        if start == end:
            tensors[name] = torch.empty(shape, dtype=dtype)
        elif base + end <= len(raw):
            tensors[name] = torch.frombuffer(raw, dtype=dtype, count=prod(shape), offset=base + start).reshape(shape)
    spans.sort()
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    if [*starts, len(raw) - base] != [0, *ends]:
        raise ValueError("its tensors overlap or leave gaps")
    return tensors
