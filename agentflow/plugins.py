"""Plug-ins by entry point: built-ins and anybody's own come through the same door."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from agentflow.errors import UserError, did_you_mean

T = TypeVar("T")


@cache
def _registered(group: str) -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def plugin_names(group: str) -> list[str]:
    """Names registered in an entry-point group, sorted; nothing is imported."""
    return sorted(_registered(group))


def load_plugin(group: str, name: str, base: type[T], *, error: type[UserError] = UserError) -> type[T]:
    """The class registered as `name`.

    Raises:
        UserError: (as `error`) unknown, can't be imported, or not a subclass of `base`.
    """
    loaded = load_entry(group, name, error=error)
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        value = _registered(group)[name].value
        raise error(f"The {_kind(group)} '{name}' can't be used: {value} is not a {base.__name__} class.")
    return loaded


def load_entry(group: str, name: str, *, error: type[UserError] = UserError) -> Any:
    """Whatever is registered as `name`.

    Raises:
        UserError: (as `error`) unknown, or can't be imported.
    """
    known = _registered(group)
    if name not in known:
        raise error(f"Unknown {_kind(group)} '{name}'.", fix=did_you_mean(name, known))
    entry = known[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as cause:
        fix = f"Mend or uninstall the package that registers {entry.value}."
        raise error(f"The {_kind(group)} '{name}' can't be loaded: {cause}.", fix=fix) from cause


def _kind(group: str) -> str:
    return group.rpartition(".")[2].rstrip("s")
