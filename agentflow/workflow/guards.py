"""The operators, filters and methods of templates, each bounded before it computes."""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterable, Sized
from typing import Any, cast

from jinja2 import Environment, Undefined, pass_context, pass_environment
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS

from agentflow.workflow.meter import (
    CostlyTemplateError,
    charge,
    check_bits,
    check_items,
    check_length,
    check_printable,
    counted,
)

WIDEST = 100_000

# Filters that neither guess, mark text as HTML, nor grow their input without bound.
_PLAIN_FILTERS = (
    "abs batch capitalize count d default dictsort first float groupby indent int items last length list "
    "lower map max min reject rejectattr replace reverse round select selectattr slice sort string sum "
    "title trim truncate unique upper wordcount wordwrap"
)
_SIZED_FILTERS = frozenset(["batch", "indent", "round", "slice", "truncate", "wordwrap"])
_SIZED_METHODS = frozenset(["center", "ljust", "rjust", "zfill"])

_TEXT_METHODS = (
    "capitalize casefold center count endswith find index isalnum isalpha isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace "
    "rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill"
)
ATTRIBUTES: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    bytes: frozenset(),
    int: frozenset(),
    float: frozenset(["is_integer"]),
}


def binary(sign: str, left: Any, right: Any) -> Any:
    """Compute `left sign right`, unless the result would be too large."""
    charge()
    if sign == "*":
        _check_product(left, right)
    elif sign == "**":
        _check_power(left, right)
    elif sign == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        (check_length if isinstance(left, str) else check_items)(len(left) + len(right))
        charge(len(right) >> 8)
    elif sign == "%" and isinstance(left, str):
        return formatted(left, right)
    return _OPERATORS[sign](left, right)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "%": operator.mod,
}
OPERATORS = frozenset(_OPERATORS)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() + right.bit_length())
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(value, "__len__"):
            (check_length if isinstance(value, str) else check_items)(len(value) * max(0, times))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() * abs(right))


def formatted(pattern: str, values: Any) -> str:
    """Return `pattern % values`; widths of five digits and more, or taken from the values, are refused."""
    if re.search(r"%[^a-zA-Z%]*(\d{5}|\*)", pattern):
        raise CostlyTemplateError("the width in a format is too large")
    check_printable(values)
    return str(pattern % values)


def text_of(value: Any) -> str:
    """Return what `value` prints as."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Undefined | int | float):
        check_printable(value)
    return str(value)


@pass_context
def finalize(context: Context, value: Any) -> str:
    """Print a value (taking the context keeps the compiler from computing constants unguarded)."""
    charge()
    return text_of(value)


def joined(texts: Iterable[str], between: str = "") -> str:
    """Join texts within the bound on length."""
    parts = list(texts)
    check_length(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


def replaced(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace within the bound on length."""
    times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    check_length(len(text) + times * max(0, len(new) - len(old)))
    return text.replace(old, new, -1 if count is None else count)


def call_text_method(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a text, unless the result would be too long."""
    name, text = method.__name__, str(getattr(method, "__self__", ""))
    if name in _SIZED_METHODS:
        check_widths(args)
    if name == "join" and len(args) == 1:
        return joined([str(part) for part in counted(args[0])], text)
    if name == "replace" and len(args) >= 2:
        return replaced(text, *args, **kwargs)
    return method(*args, **kwargs)


def check_widths(values: Iterable[Any]) -> None:
    """Refuse widths, counts and precisions that are absurd."""
    for value in values:
        if isinstance(value, int) and abs(value) > WIDEST:
            raise CostlyTemplateError(f"the width {value:.3g} is too large" if abs(value) < 1e300 else "too wide")


def filters() -> dict[str, Callable[..., Any]]:
    """Return the filters that templates may use, each counting its work."""
    own: dict[str, Callable[..., Any]] = {
        "join": _join,
        "replace": lambda value, old, new, count=None: replaced(text_of(value), str(old), str(new), count),
        "string": text_of,
        "tojson": _to_json,
        "format": lambda pattern, *args, **named: formatted(str(pattern), named or args),
    }
    plain = {name: FILTERS[name] for name in _PLAIN_FILTERS.split()} | own
    return {name: _counting(name, function) for name, function in plain.items()}


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    takes_environment = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        value = args[1] if takes_environment and len(args) > 1 else args[0]
        charge(1 + work(value))
        if name in _SIZED_FILTERS:
            check_widths([*args[1:], *kwargs.values()])
        return function(*args, **kwargs)

    return guarded


def tests() -> dict[str, Callable[..., Any]]:
    """Return the tests (`is ...`) that templates may use, each counting its work."""
    known = cast(dict[str, Callable[..., Any]], TESTS)
    return {name: _measuring(function) for name, function in known.items()}


def _measuring(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        charge(1 + sum(map(work, args)))
        return function(*args)

    return guarded


def measured(value: Any) -> Any:
    """Charge for one look at all of `value`, and return it."""
    charge(1 + work(value))
    return value


def work(value: Any) -> int:
    """Return how many steps it takes to look at all of `value`."""
    if isinstance(value, Undefined) or not isinstance(value, Sized):
        return 0
    return len(value) >> 8 if isinstance(value, str) else len(value)


def bounded_range(*limits: int) -> range:
    """Return a `range` that is not absurdly long."""
    numbers = range(*limits)
    if len(numbers) > WIDEST:
        raise CostlyTemplateError(f"a range may hold at most {WIDEST:,} numbers")
    return numbers


@pass_environment
def _join(environment: Environment, value: Any, d: str = "", attribute: str | None = None) -> str:
    items = counted(value)
    if attribute is not None:
        pick = functools.partial(_pick, environment, attribute.split("."))
        items = map(pick, items)
    return joined((text_of(item) for item in items), text_of(d))


def _pick(environment: Environment, names: list[str], item: Any) -> Any:
    for name in names:
        item = environment.getitem(item, int(name) if name.isdigit() else name)
    return item


def _to_json(value: Any, indent: int | None = None) -> str:
    check_printable(value)
    check_widths([indent])
    return json.dumps(value, ensure_ascii=False, indent=min(indent, 16) if indent else None)
