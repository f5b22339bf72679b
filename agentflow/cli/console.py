"""Where words go: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import math
from typing import Any

import click
from rich.console import Console

PIPE_WIDTH = 140
"""Columns where the output is no terminal, so that tables in files and logs are not folded."""


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


out = _console(stderr=False)
err = _console(stderr=True)


def print_json(value: Any) -> None:
    """Print one JSON document for machines."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


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
