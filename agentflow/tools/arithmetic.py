"""Tool `calculate`: arithmetic, which small models get wrong."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

LONGEST = 1_000
LARGEST_POWER = 10_000
"""Bits of a whole power."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> float | int:
    """Compute an expression of numbers, `+ - * / // % **` and brackets.

    The expression is parsed, never run as Python. Raises `ValueError` for anything else in it, for what is not
    defined, and for results that are too large.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"an expression of more than {LONGEST:,} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"'{expression[:80]}' is no expression of numbers") from None
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"'{expression[:80]}' can't be computed: {error}") from None
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"'{expression[:80]}' is no finite number")
    return value


def _value(node: ast.expr) -> float | int:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(inner))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            first, second = _value(left), _value(right)
            _check_size(sign, first, second)
            return _BINARY[type(sign)](first, second)
    raise ValueError("only numbers, + - * / // % ** and brackets can be computed")


def _check_size(sign: ast.operator, first: float, second: float) -> None:
    if not isinstance(first, int) or not isinstance(second, int):
        return
    bits = first.bit_length() * abs(second) if isinstance(sign, ast.Pow) else first.bit_length() + second.bit_length()
    if bits > LARGEST_POWER:
        raise ValueError("a number would be too large")
