"""Where words go: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

PIPE_WIDTH = 140
"""Columns where the output is no terminal and COLUMNS says nothing, so that tables in files are not folded."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Results(Console):
    """Standard output. When its reader is gone (`| head`), the command ends."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Progress(Console):
    """Standard error. When its reader is gone, the command goes on in silence: the work is worth finishing."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def _console(kind: type[Console], *, stderr: bool) -> Console:
    # emoji=False: ":key:" in a model's answer stays ":key:".
    console = kind(stderr=stderr, highlight=False, emoji=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return kind(stderr=stderr, highlight=False, emoji=False, width=PIPE_WIDTH)


out = _console(_Results, stderr=False)
err = _console(_Progress, stderr=True)


def visible(text: object) -> str:
    """Foreign text with its control characters written out: an answer must not move the cursor or clear the screen."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], str(text))


def plain(text: object) -> str:
    """Foreign text as rich may print it: no markup, no control characters."""
    return escape(visible(text))


def complain(error: object) -> None:
    """Print an error for people."""
    click.echo(f"error: {visible(error)}", err=True)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document for machines, on one line without `indent`; what is not a number becomes null."""
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(json.dumps(_strict(value), ensure_ascii=ascii_only, allow_nan=False, indent=indent))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float, form: str = ",.0f") -> str:
    """A number for people; a dash where there is none."""
    return "–" if math.isnan(value) else format(value, form)


def seconds(value: float) -> str:
    """A duration for people."""
    if math.isnan(value):
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 100 else f"{value / 60:.1f} min"


def amount(value: float) -> str:
    """A count of bytes for people."""
    if math.isnan(value):
        return "–"
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def count(number: int, noun: str) -> str:
    """A count with its noun: "1 edge", "3 edges"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
