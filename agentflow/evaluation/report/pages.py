"""Pages of HTML from templates of this folder: foreign text is escaped, and what a template misses is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template


def page(name: str, filters: Mapping[str, Callable[..., Any]]) -> Template:
    """The template of this name, with what it may show values by."""
    env = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters |= filters
    return env.from_string(resource(name))


def resource(name: str) -> str:
    """A file of this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
