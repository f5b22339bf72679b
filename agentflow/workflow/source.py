"""A YAML file as a value whose every part knows its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agentflow.workflow.composer import Composer, YamlNode, locate
from agentflow.workflow.location import KeyPath, Location, split_lines
from agentflow.workflow.problems import fail

_TAG = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
LARGEST_FILE = 8 * 1024 * 1024


@dataclass(frozen=True)
class Source:
    """One file: its text, the plain value it holds, and the places of everything in it."""

    file: str
    text: str = field(repr=False)
    value: Any = field(repr=False)
    root: YamlNode = field(repr=False, compare=False)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, as YAML counts them."""
        return split_lines(self.text)

    def location(self, path: KeyPath, key: bool = False) -> Location:
        """Return where the value at `path` stands, or with `key` the key that names it.

        A path that leads nowhere gives the nearest enclosing value that exists.
        """
        node, found_key, _ = self._walk(path)
        if key and found_key is not None:
            node = found_key
        return self._at(node)

    def has(self, path: KeyPath) -> bool:
        """Whether a value stands at exactly this path."""
        return self._walk(path)[2] == len(path)

    def location_of_text(self, path: KeyPath, needle: str, occurrence: int = 0, *, in_tags: bool = True) -> Location:
        """Return the place of `needle` in the text at `path`, or of the text when it can't be found.

        With `in_tags` only what stands between `{{ }}` or `{% %}` counts.
        """
        node, _, _ = self._walk(path)
        first, last = node.start[0], min(node.end[0] + 1, len(self.lines))
        raw = "\n".join([" " * node.start[1] + self.lines[first][node.start[1] :], *self.lines[first + 1 : last]])
        before_it = r"(?<![\w.])" if needle[:1].isalnum() else ""
        pattern = re.compile(rf"{before_it}{re.escape(needle)}(?!\w)")
        spans = [match.span() for match in _TAG.finditer(raw)] if in_tags else [(0, len(raw))]
        starts = [found.start() for begin, end in spans for found in pattern.finditer(raw, begin, end)]
        if occurrence >= len(starts):
            return self._at(node)
        before = raw[: starts[occurrence]].split("\n")
        line, column = first + len(before) - 1, len(before[-1])
        return locate(self.file, self.lines, (line, column), (line, column + len(needle)))

    def location_of_line(self, path: KeyPath, line: int) -> Location:
        """Return the place of the text's own line `line` (from 1); exact for `|` blocks and single lines."""
        node, _, _ = self._walk(path)
        number = node.start[0] + line
        if node.style != "|" or number >= min(node.end[0] + 1, len(self.lines)):
            return self._at(node)
        text = self.lines[number]
        indent = len(text) - len(text.lstrip())
        return locate(self.file, self.lines, (number, indent), (number, len(text.rstrip())))

    def _at(self, node: YamlNode) -> Location:
        end = node.end if node.style not in ("|", ">") else (node.start[0], node.start[1] + 1)
        return locate(self.file, self.lines, node.start, end)

    def _walk(self, path: KeyPath) -> tuple[YamlNode, YamlNode | None, int]:
        """Return the deepest node on `path`, its key, and how many steps were taken."""
        node: YamlNode = self.root
        key: YamlNode | None = None
        for taken, step in enumerate(path):
            if isinstance(node.items, dict) and step in node.items:
                key, node = node.items[step]
            elif isinstance(node.items, list) and isinstance(step, int) and 0 <= step < len(node.items):
                key, node = None, node.items[step]
            else:
                return node, key, taken
        return node, key, len(path)


def parse_yaml(text: str, file: str = "<text>") -> Source:
    """Read YAML text; `file` is the name used in messages. Raises `WorkflowProblemsError`."""
    text = text.removeprefix("\ufeff")
    root = Composer(text, file).compose()
    return Source(file, text, root.value, root)


def read_yaml(path: Path) -> Source:
    """Read a YAML file of at most 8 MiB. Raises `WorkflowProblemsError`, also when it can't be read."""
    place = Location(str(path), 1, 1)
    try:
        if path.is_dir():
            fail(place, "this is a folder, not a file", "Name a .yaml file in it.")
        if not path.exists():
            fail(place, "there is no such file", "Check the path.")
        if not path.is_file():
            fail(place, "this is not a regular file")
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        fail(place, f"the file can't be read: {error.strerror or error}")
    if len(data) > LARGEST_FILE:
        limit = LARGEST_FILE // (1024 * 1024)
        fail(place, f"the file is larger than {limit} MiB", "Keep data in data files, not in YAML.")
    try:
        return parse_yaml(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        before = split_lines(data[: error.start].decode("utf-8"))
        place = Location(str(path), len(before), len(before[-1]) + 1)
        fail(place, f"the byte 0x{data[error.start]:02x} is not UTF-8", "Save the file as UTF-8.")
