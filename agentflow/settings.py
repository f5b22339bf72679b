"""Settings that don't fit, in plain words: what pydantic found, without its vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentflow.errors import Fault, UserError, did_you_mean

M = TypeVar("M", bound=BaseModel)

_WANTED = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be a text",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}


def checked(
    settings: type[M], values: Mapping[str, Any], *, error: type[UserError] = UserError, where: str | None = None
) -> M:
    """Return the settings with these values.

    Raises:
        UserError: (as `error`) one sentence for every wrong setting, and a fault for each.
    """
    try:
        return settings.model_validate(dict(values))
    except ValidationError as found:
        told = list(faults(found, settings, values))
    raise error(_joined(told), where=where, faults=told)


def explain(error: ValidationError, settings: type[BaseModel], values: Mapping[str, Any] | None = None) -> str:
    """Return one sentence per wrong setting, joined by "; "."""
    return _joined(faults(error, settings, values))


def faults(
    error: ValidationError, settings: type[BaseModel], values: Mapping[str, Any] | None = None
) -> Iterator[Fault]:
    """Yield every wrong setting once; given the values, what each alternative of one says is joined by "or"."""
    grouped: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        as_told = values is None or problem["type"] == "missing"
        path = problem["loc"] if as_told else _written(problem["loc"], values)
        grouped.setdefault(path, []).append(problem)
    for path, problems in grouped.items():
        if problems[0]["type"] == "extra_forbidden":
            hint = did_you_mean(str(path[-1]), _known(settings, path)) or "There are none."
            yield Fault(path, f"unknown setting '{'.'.join(map(str, path))}'", hint, is_key=True)
        else:
            yield Fault(path, _sentence(path, problems))


def _known(settings: type[BaseModel], path: Sequence[int | str]) -> Iterable[str]:
    """The settings there are where a path ends: those of the mapping inside of which it is."""
    for step in path[:-1]:
        field = settings.model_fields.get(str(step))
        types = (field.annotation, *get_args(field.annotation)) if field is not None else ()
        inner = next((t for t in types if isinstance(t, type) and issubclass(t, BaseModel)), None)
        if inner is None:
            return ()
        settings = inner
    return settings.model_fields


def _joined(told: Iterable[Fault]) -> str:
    return "; ".join(map(str, told)) + "."


def _written(path: tuple[int | str, ...], values: Any) -> tuple[int | str, ...]:
    """The part of a path that leads through the values: the setting `t` where pydantic says `t.float`."""
    for taken, step in enumerate(path):
        try:
            values = values[step]
        except (LookupError, TypeError):
            return path[:taken]
    return path


def _sentence(path: tuple[int | str, ...], problems: Sequence[ErrorDetails]) -> str:
    name, first = ".".join(str(part) for part in path), problems[0]
    if first["type"] == "value_error":
        text = str(first.get("ctx", {}).get("error", first["msg"])).rstrip(".")
        return f"setting '{name}' {text}" if name else text
    if first["type"] == "missing":
        return f"setting '{name}' is missing"
    wanted = " or ".join(dict.fromkeys(_requirement(problem) for problem in problems))
    return f"setting '{name}' {wanted}, not {first['input']!r}"


def _requirement(problem: ErrorDetails) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {context[key]}"
    if kind in _LENGTHS:
        words, key = _LENGTHS[kind]
        return f"must have {words} {context[key]} entr{'y' if context[key] == 1 else 'ies'}"
    return _WANTED.get(kind.partition("_")[0], f"is wrong ({problem['msg']})")
