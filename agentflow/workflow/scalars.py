"""YAML's scalars by the rules of YAML 1.2's core schema.

PyYAML's own rules are those of YAML 1.1, which surprise people: `on`, `no` and `off` become booleans,
`1:30` becomes 90, `1e-4` stays text. Here `on: x`, `answer: no` and `1:30` stay text and `1e-4` is a number.
"""

from __future__ import annotations

import re

CORE = "tag:yaml.org,2002:"
SCALAR_TAGS = frozenset(CORE + name for name in ("str", "int", "float", "bool", "null"))

Scalar = str | int | float | bool | None

_TRUE = frozenset(["true", "True", "TRUE"])
_FALSE = frozenset(["false", "False", "FALSE"])
_NULL = frozenset(["", "~", "null", "Null", "NULL"])
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_PREFIXED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MOST_DIGITS = 300
_NUMBER_START = frozenset("-+.0123456789")


def plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises `ValueError` for a number of absurd length."""
    if text in _NULL:
        return None
    if text[0] in _NUMBER_START:
        return _number(text)
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    return text


def tagged(text: str, tag: str) -> Scalar:
    """Return the value of a scalar with an explicit core tag. Raises `ValueError` when they disagree."""
    name = tag.removeprefix(CORE)
    if name == "str":
        return text
    value = plain(text)
    if name == "float" and type(value) is int:
        return float(value)
    if type(value) is {"int": int, "float": float, "bool": bool, "null": type(None)}[name]:
        return value
    raise ValueError(f"the tag !!{name} does not fit this value")


def _number(text: str) -> Scalar:
    if _DECIMAL.fullmatch(text):
        return int(_short(text))
    if _PREFIXED.fullmatch(text):
        return int(_short(text), 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.lower().replace(".", "", 1))
    return text


def _short(digits: str) -> str:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is too long")
    return digits
