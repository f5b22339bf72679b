"""Figures and foreign text as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentflow.evaluation.statistics import Interval, minus

NONE = "–"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: object) -> str:
    """Foreign text with control characters and changes of writing direction written out."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], str(text))


def short(text: object, most: int) -> str:
    """Visible text of at most `most` characters; what is cut is marked."""
    shown = visible(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def number(value: float | None, form: str = ",.0f") -> str:
    """A number; a dash where there is none."""
    return NONE if value is None else minus(format(value, form))


def seconds(value: float | None) -> str:
    """A duration: "87 ms", "1.25 s", "3.1 min"."""
    if value is None:
        return NONE
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 99.995 else f"{value / 60:.1f} min"


def of_one_unit(values: Sequence[float]) -> list[str]:
    """Durations of one scale, all in the unit of the longest: "0.0 min", "0.8 min", "1.7 min"."""
    longest = max(values, default=0.0)
    if longest < 0.9995:
        return [f"{value * 1000:.0f} ms" for value in values]
    return [f"{value:.2f} s" if longest < 99.995 else f"{value / 60:.1f} min" for value in values]


def two_seconds(first: float, second: float) -> str:
    """Two durations in one unit: "87/131 ms"."""
    if second < 0.9995:
        return f"{first * 1000:.0f}/{second * 1000:.0f} ms"
    return f"{first:.2f}/{second:.2f} s" if second < 99.995 else f"{first / 60:.1f}/{second / 60:.1f} min"


def amount(value: float | None) -> str:
    """A number of bytes: "312 B", "1.2 MB"."""
    if value is None:
        return NONE
    for unit, digits in (("B", 0), ("KB", 1), ("MB", 1)):
        if round(value, digits) < 1000:
            return f"{value:.{digits}f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def probability(value: float | None) -> str:
    """A p-value: "0.03", "<0.001"."""
    if value is None:
        return NONE
    if value < 0.001:
        return "<0.001"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def p_equals(value: float | None) -> str:
    """A p-value in a sentence: "p = 0.03", "p < 0.001"."""
    shown = probability(value)
    return f"p < {shown[1:]}" if shown.startswith("<") else f"p = {shown}"


def interval(value: Interval | None, edges: int = 3, *, sign: bool = False) -> str:
    """A mean with its interval, the bounds with this many decimals; a dash where there is none."""
    return NONE if value is None else value.text(3, edges=edges, sign=sign)


def count(many: int, noun: str) -> str:
    """A count with its noun: "1 item", "3 items"."""
    return f"{many:,} {noun}" if many == 1 else f"{many:,} {noun}s"


def fact(value: Any) -> str:
    """A fact about the machine or the task, nested ones included: "weights 3f2a, dtype float32"."""
    if isinstance(value, dict):
        inner = [f"{name} ({fact(v)})" if isinstance(v, dict) else f"{name} {fact(v)}" for name, v in value.items()]
        return ", ".join(inner) or NONE
    if isinstance(value, list | tuple):
        return ", ".join(fact(v) for v in value) or NONE
    return NONE if value is None or value == "" else visible(value)
