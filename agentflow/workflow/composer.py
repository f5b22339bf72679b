"""YAML text -> a tree of values in which every key and value knows its place.

Built on the parser's event stream with an explicit stack, so that depth, size and aliases are bounded *while*
reading: an alias is a shared reference whose expanded size is only added up, so a "billion laughs" file is
refused after a few lines instead of being unfolded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import yaml

from agentflow.workflow.location import KeyPath, Location, split_lines
from agentflow.workflow.problems import Problem, fail, quoted, raise_problems
from agentflow.workflow.scalars import CORE, SCALAR_TAGS, plain, tagged
from agentflow.workflow.syntax import check_characters, syntax_problem

MOST_NODES = 500_000
DEEPEST = 40

# The C parser is ten times as fast and gives the same events; a PyYAML built without it still works.
_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COLLECTION_TAGS = {yaml.SequenceStartEvent: CORE + "seq", yaml.MappingStartEvent: CORE + "map"}


@dataclass(slots=True, eq=False)
class YamlNode:
    """A value and its span (lines and columns from 0); `items` holds the children of a collection."""

    value: Any
    start: tuple[int, int]
    end: tuple[int, int]
    style: str = ""
    items: dict[str | int, tuple[YamlNode, YamlNode]] | list[YamlNode] | None = None
    size: int = 1
    height: int = 0


class _Frame:
    """A collection that is still open, and the key that waits for its value."""

    __slots__ = ("anchor", "key", "node")

    def __init__(self, node: YamlNode, anchor: str | None) -> None:
        self.node, self.anchor = node, anchor
        self.key: YamlNode | None = None


class Composer:
    """Reads one document; mistakes that leave the rest readable are collected and raised together."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._lines = split_lines(text)
        self._stack: list[_Frame] = []
        self._anchors: dict[str, YamlNode | None] = {}  # None: still open, so an alias to it is a circle
        self._problems: list[Problem] = []
        self._total = 0
        self._root: YamlNode | None = None

    def compose(self) -> YamlNode:
        """Return the root of the document. Raises `WorkflowProblemsError`."""
        check_characters(self._text, self._file)
        for event in self._events():
            self._take(event)
        if self._problems:
            raise_problems(self._problems)
        if self._root is None or self._root.value is None:
            fail(Location(self._file, 1, 1, 1), "the file is empty", "A YAML mapping is expected.")
        return self._root

    def _events(self) -> Iterator[Any]:
        try:
            yield from yaml.parse(self._text, Loader=_Loader)
        except yaml.YAMLError as error:
            raise_problems([*self._problems, syntax_problem(error, self._lines, self._file)])

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event), event.anchor, event)
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._alias(event), None, event)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(event)
        elif isinstance(event, yaml.DocumentStartEvent) and self._root is not None:
            self._stop(event, "a second document starts here", "Keep one document in a file.")

    def _scalar(self, event: Any) -> YamlNode:
        node = YamlNode(event.value, *_span(event), style=event.style or "")
        tag = event.tag
        try:
            if tag in SCALAR_TAGS:
                node.value = tagged(event.value, tag)
            elif tag is not None and tag != "!":
                self._refuse_tag(event)
            elif tag is None and event.implicit[0]:
                node.value = plain(event.value)
        except ValueError as error:
            self._report(event, str(error), "Put it in quotes if it is meant as text.")
        return node

    def _alias(self, event: Any) -> YamlNode:
        if event.anchor not in self._anchors:
            self._stop(
                event,
                f"unknown alias *{event.anchor}",
                "Name an anchor (&name) that stands above it, or put the text in quotes.",
            )
        node = self._anchors[event.anchor]
        if node is None:
            self._stop(event, f"the alias *{event.anchor} contains itself", "Write the value out.")
        start, end = _span(event)
        return replace(node, start=start, end=end) if self._awaits_key() else node

    def _open(self, event: Any) -> None:
        if event.tag is not None and event.tag not in ("!", _COLLECTION_TAGS[type(event)]):
            self._refuse_tag(event)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        node = YamlNode({} if is_mapping else [], *_span(event), "flow" if event.flow_style else "block")
        node.items = {} if is_mapping else []
        if event.anchor:
            self._anchors[event.anchor] = None
        self._check_key(event)
        self._stack.append(_Frame(node, event.anchor))
        self._check_depth(event, 0)

    def _close(self, event: Any) -> None:
        frame = self._stack.pop()
        frame.node.end = (event.end_mark.line, event.end_mark.column)
        self._total -= frame.node.size - 1  # `_add` counts the whole node again
        self._add(frame.node, frame.anchor, frame.node)

    def _check_key(self, event: Any) -> None:
        if not self._awaits_key():
            return
        line = self._lines[event.start_mark.line]
        is_template = "{{" in line[max(0, event.start_mark.column - 1) :]
        self._stop(
            event,
            "a key must be plain text, not a list or a mapping",
            "Put quotes around a value that starts with {{." if is_template else "",
        )

    def _awaits_key(self) -> bool:
        frame = self._stack[-1] if self._stack else None
        return frame is not None and isinstance(frame.node.items, dict) and frame.key is None

    def _add(self, node: YamlNode, anchor: str | None, at: Any) -> None:
        if anchor:
            self._anchors[anchor] = node
        self._total += node.size
        if self._total > MOST_NODES:
            what = f"too large: more than {MOST_NODES:,} values (an alias counts as all that it stands for)"
            self._stop(at, what, "Generate smaller files, or split the workflow.")
        if not self._stack:
            self._root = node
            return
        frame = self._stack[-1]
        self._check_depth(at, node.height)
        parent = frame.node
        parent.size += node.size
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent.items, list):
            parent.items.append(node)
            parent.value.append(node.value)
        elif frame.key is None:
            frame.key = node
            self._check_plain_key(node)
        else:
            self._pair(parent, frame.key, node)
            frame.key = None

    def _check_plain_key(self, key: YamlNode) -> None:
        if key.items is not None:
            self._report(key, "a key must be plain text, not a list or a mapping")
        elif key.value == "<<" and not key.style:
            self._report(
                key,
                "merge keys (<<) are not supported",
                "Use `defaults:`, an agent file with `use:`, or an alias for a whole value.",
            )
        elif not _is_key(key.value):
            self._report(key, "a key must be text", "Put it in quotes.")

    def _pair(self, parent: YamlNode, key: YamlNode, node: YamlNode) -> None:
        items = parent.items
        name = key.value
        if not isinstance(items, dict) or key.items is not None or not _is_key(name):
            return  # reported with the key
        if name in items:
            first = items[name][0].start
            self._report(
                key,
                f"the key {quoted(name)} appears twice; the first is at {first[0] + 1}:{first[1] + 1}",
                "Keep one of them.",
            )
            return
        items[name] = (key, node)
        parent.value[name] = node.value

    def _path(self) -> KeyPath:
        path: list[str | int] = []
        for frame in self._stack:
            if isinstance(frame.node.items, list):
                path.append(len(frame.node.items))
            elif frame.key is not None and _is_key(frame.key.value):
                path.append(frame.key.value)
        return tuple(path)

    def _check_depth(self, at: Any, height: int) -> None:
        if len(self._stack) + height > DEEPEST:
            self._report(at, f"too large: nested more than {DEEPEST} levels deep", "Split the workflow.", ())
            raise_problems(self._problems)

    def _refuse_tag(self, event: Any) -> None:
        shown = event.tag.replace(CORE, "!!")
        self._report(
            event,
            f"the tag {quoted(shown)} is not allowed",
            "Only plain text, numbers, true/false, null, lists and mappings are read; remove the tag.",
        )

    def _stop(self, at: Any, what: str, fix: str) -> NoReturn:
        self._report(at, what, fix)
        raise_problems(self._problems)

    def _report(self, at: Any, what: str, fix: str = "", path: KeyPath | None = None) -> None:
        start, end = (at.start, at.end) if isinstance(at, YamlNode) else _span(at)
        place = locate(self._file, self._lines, start, end)
        self._problems.append(Problem(place, self._path() if path is None else path, what, fix))


def locate(file: str, lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> Location:
    """Turn a span of the parser into a location on the span's first line."""
    line, column = start
    text = lines[line] if line < len(lines) else ""
    stop = end[1] if end[0] == line else len(text.rstrip())
    return Location(file, line + 1, column + 1, max(1, stop - column), text)


def _is_key(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _span(event: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    start, end = event.start_mark, event.end_mark
    return (start.line, start.column), (end.line, end.column)
