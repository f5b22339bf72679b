"""Which file each part of a workflow came from: the workflow's own, an agent file, or the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from agentflow.workflow.lineage import owner
from agentflow.workflow.location import KeyPath, Location
from agentflow.workflow.problems import Problem
from agentflow.workflow.source import Source


@dataclass(frozen=True, slots=True)
class TextSpot:
    """A spot inside a template: the `occurrence`-th `needle` (within tags, unless told), or a line from 1."""

    line: int = 1
    needle: str = ""
    occurrence: int = 0
    in_tags: bool = True


Layer: TypeAlias = tuple[Source, KeyPath]
"""A file, and the place of a mapping in it."""


@dataclass(frozen=True)
class Origins:
    """Where everything of a workflow is written.

    Attributes:
        main: its own file.
        agents: what an agent with `use` or `extends` is made of, what wins first.
        bases: the files that the workflow extends, nearest first.
    """

    main: Source
    agents: dict[str, tuple[Layer, ...]] = field(default_factory=dict)
    bases: tuple[Source, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every file, the workflow's own first."""
        others = (source for layers in self.agents.values() for source, _ in layers)
        return tuple({source.file: source for source in (self.main, *self.bases, *others)}.values())

    def find(self, path: KeyPath) -> tuple[Source, KeyPath]:
        """Return the file that holds the value at `path` of the merged workflow, and its path in there."""
        line = (self.main, *self.bases)
        own = owner(line, path)
        if path[:1] == ("agents",) and len(path) > 2 and not own.has(path[:3]):
            for source, at in self.agents.get(str(path[1]), ()):
                if source.has((*at, path[2])):
                    return source, (*at, *path[2:])
            if path[2] == "model" and (shared := owner(line, ("defaults", "model"))).has(("defaults", "model")):
                return shared, ("defaults", *path[2:])
        if "channel" in path[2:]:
            end = path.index("channel", 2) + 1
            shared = owner(line, ("defaults", "channel"))
            if path[end - 3] == "edges" and not own.has(path[:end]) and shared.has(("defaults", "channel")):
                return shared, ("defaults", "channel", *path[end:])
        return own, path

    def location(self, path: KeyPath, key: bool = False) -> Location:
        """Return where the value at `path` (or its key) stands."""
        source, inner = self.find(path)
        return source.location(inner, key)

    def problem(self, path: KeyPath, what: str, fix: str = "", key: bool = False) -> Problem:
        """Return a problem at `path`, named by its path within the file that holds it."""
        source, inner = self.find(path)
        return Problem(source.location(inner, key), inner, what, fix)

    def text_problem(self, path: KeyPath, what: str, fix: str, spot: TextSpot) -> Problem:
        """Return a problem inside the text at `path`, at the words it is about when they can be found."""
        source, inner = self.find(path)
        if spot.needle:
            place = source.location_of_text(inner, spot.needle, spot.occurrence, in_tags=spot.in_tags)
        else:
            place = source.location_of_line(inner, spot.line)
        return Problem(place, inner, what, fix)
