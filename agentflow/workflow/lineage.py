"""`extends:` between files of one kind: what a file takes from others, nearest first, and how they are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from agentflow.workflow import library
from agentflow.workflow.location import KeyPath, shown_file
from agentflow.workflow.problems import Problem, WorkflowProblemsError, described, quoted, suggestion
from agentflow.workflow.source import Source, read_yaml

KEY = "extends"
MOST_FILES = 10
"""Of one line."""
Finder = Callable[[str, Path], Path | None]

# How deep sections of a workflow are merged: the keys of an agent one by one, outputs by name; the rest is replaced.
_DEPTHS = {"inputs": 3, "agents": 3, "nodes": 3, "defaults": 2, "outputs": 2}


def lineage(source: Source, folder: Path, kind: str, find: Finder, known: Iterable[str] = ()) -> list[Source]:
    """Return a file and those that it extends, nearest first.

    Args:
        folder: the file's own; those of the others are where they lie.
        kind: what such a file is, for messages: "a workflow".
        find: gives the file that a reference means, looked for from a folder.
        known: names to suggest.

    Raises:
        WorkflowProblemsError: a reference that leads nowhere, a file that can't be read, a circle.
    """
    line = [source]
    while isinstance(line[-1].value, dict) and line[-1].value.get(KEY) is not None:
        child = line[-1]
        ref: Any = child.value[KEY]
        if not isinstance(ref, str) or not ref.strip():
            _refuse(child, f"expected the name of {kind}, got {described(ref)}", f"Write `{KEY}: name`.")
        if not library.is_plain(ref):
            _refuse(child, f"the path {quoted(ref)} leaves the project", "Name a file below this one's folder.")
        found = find(ref, folder)
        if found is None:
            _refuse(
                child, f"there is no {kind.partition(' ')[2]} {quoted(ref)}", suggestion(ref, _names(folder, known))
            )
        places = [Path(s.file).resolve() for s in line]
        if found.resolve() in places:
            circle = [*line[places.index(found.resolve()) :], line[places.index(found.resolve())]]
            what = f"files extend one another in a circle: {' -> '.join(shown_file(s.file) for s in circle)}"
            _refuse(child, what, "Remove one `extends`.")
        if len(line) == MOST_FILES:
            _refuse(child, f"more than {MOST_FILES} files extend one another", "Put some of them together.")
        base = read_yaml(found)
        if not isinstance(base.value, dict):
            what = f"{kind} is a mapping, not {described(base.value)}"
            raise WorkflowProblemsError([Problem(base.location(()), (), what)])
        line.append(base)
        folder = found.parent
    return line


def merged(line: Iterable[Source]) -> dict[Any, Any]:
    """Return what the files of a line say together; what is nearer wins."""
    data: dict[Any, Any] = {}
    for source in reversed(list(line)):
        for section, value in source.value.items():
            data[section] = _over(value, data.get(section), _DEPTHS.get(section, 1) - 1)
    data.pop(KEY, None)
    return data


def owner(line: Iterable[Source], path: KeyPath) -> Source:
    """Return the file of a line in which the value at `path` of the merged workflow is written."""
    sources = tuple(line)
    if len(sources) == 1:
        return sources[0]
    for depth in range(min(len(path), _DEPTHS.get(str(path[0]), 1) if path else 0), 0, -1):
        for source in sources:
            if source.has(path[:depth]):
                return source
    return sources[0]


def _over(value: Any, base: Any, depth: int) -> Any:
    """Lay a value over another: mappings key by key to that depth; `null` says nothing."""
    if value is None:
        return base
    if depth == 0 or not isinstance(value, Mapping) or not isinstance(base, Mapping):
        return value
    return {**base, **{key: _over(inner, base.get(key), depth - 1) for key, inner in value.items()}}


def _names(folder: Path, known: Iterable[str]) -> list[str]:
    return [*known, *(path.stem for path in folder.glob("*") if path.suffix in library.SUFFIXES)]


def _refuse(source: Source, what: str, fix: str) -> NoReturn:
    raise WorkflowProblemsError([Problem(source.location((KEY,)), (KEY,), what, fix)])
