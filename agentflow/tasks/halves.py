"""Two fixed halves of any data set: one to tune on, one to report."""

from __future__ import annotations

import hashlib
from typing import Literal

Half = Literal["all", "tuning", "reporting"]


def half_of(item_id: str) -> Literal["tuning", "reporting"]:
    """Return the item's half: SHA-256 of the id in UTF-8, read as a number; even is tuning, odd reporting.

    It depends on the id alone, so an item never changes sides when files are cut, merged or re-ordered.
    """
    digest = hashlib.sha256(item_id.encode("utf-8")).digest()
    return "reporting" if digest[-1] % 2 else "tuning"


def in_half(item_id: str, half: Half) -> bool:
    """Tell whether an item belongs to the chosen half."""
    return half in ("all", half_of(item_id))
