"""Where something stands in a file, and the lines that show it to a person."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

WIDEST_LINE = 110
# What YAML counts as the end of a line; `str.splitlines` knows more of them and would miscount.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Location:
    """A span on one line of a file; `line` and `column` count from 1, `text` is that whole line."""

    file: str
    line: int
    column: int
    length: int = 1
    text: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{shown_file(self.file)}:{self.line}:{self.column}"

    def snippet(self) -> str:
        """Return the line with its number and a second line with carets under the span ("" without text)."""
        if not self.text:
            return ""
        start = self.column - 1
        left, text = _window(self.text, start)
        start -= left
        gutter = f"{self.line} | "
        pad = "".join(_blank(character) for character in text[:start]).ljust(start)
        span = text[start : start + self.length]
        width = sum(len(_blank(character)) for character in span) or 1
        return f"{gutter}{text}\n{' ' * (len(gutter) - 2)}| {pad}{'^' * width}"


def split_lines(text: str) -> list[str]:
    """Split as YAML does, so that line numbers agree with the parser's."""
    return _LINE_BREAK.split(text)


def shown_file(file: str) -> str:
    """Return the file as a person would type it: relative when it lies below the working folder."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def shown_path(path: KeyPath) -> str:
    """Write a path of keys as `edges[0].channel.name`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, str) and re.fullmatch(r"[\w-]+", step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{step!r}]")
    return "".join(parts)


def _window(text: str, start: int) -> tuple[int, str]:
    """Cut a very long line down to the part around `start`; also return how many characters went."""
    if len(text) <= WIDEST_LINE:
        return 0, text
    left = min(max(0, start - WIDEST_LINE // 2), len(text))
    part = text[left : left + WIDEST_LINE]
    head, tail = ("…" if left else ""), ("…" if left + WIDEST_LINE < len(text) else "")
    return left - len(head), head + part + tail


def _blank(character: str) -> str:
    """Return the blanks that take as much room in a terminal as `character`."""
    if character == "\t":
        return "\t"
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "
