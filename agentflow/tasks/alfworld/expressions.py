"""The expressions in a game's grammar, without running them as Python, which TextWorld does.

ALFWorld's grammar needs names of things, quoted texts, "+" and "or": `o.indefinite + ' ' + o.name`, `r.name or r.id`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from agentflow.errors import DataError

FIELDS = frozenset({"definite", "id", "indefinite", "name"})
_LONGEST = 200


def evaluate(expression: str, variables: Mapping[str, Any]) -> str:
    """Return the expression's value as text; `variables` are things with the attributes `FIELDS`.

    Raises `DataError` for an expression of any other kind, one that is too long, or a variable that isn't there.
    """
    refusal = DataError(f"The game's grammar holds an expression that is not run: {expression[:80]!r}.")
    if len(expression) > _LONGEST:
        raise refusal
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body, variables))
    except (SyntaxError, ValueError, RecursionError, TypeError, KeyError):
        raise refusal from None


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return variables[name]
        case ast.Attribute(value=ast.Name(id=name), attr=field) if field in FIELDS:
            return getattr(variables[name], field)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, variables) + _value(right, variables)
        case ast.BoolOp(op=ast.Or(), values=choices):
            found = [_value(choice, variables) for choice in choices]
            return next((value for value in found if value), found[-1])
        case _:
            raise ValueError(ast.dump(node))
