"""Which file each part of a workflow came from: the workflow's own, an agent file, or the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Origins:
    """The workflow's file and, by agent, the file its `use:` named."""

    main: Source
    agent_files: dict[str, Source] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every file, the workflow's own first."""
        return tuple({source.file: source for source in (self.main, *self.agent_files.values())}.values())

    def find(self, path: KeyPath) -> tuple[Source, KeyPath]:
        """Return the file that holds the value at `path` of the merged workflow, and its path in there."""
        if path[:1] == ("agents",) and len(path) > 2 and not self.main.has(path[:3]):
            source = self.agent_files.get(str(path[1]))
            if source is not None and (source.has(path[2:3]) or path[2] != "model"):
                return source, path[2:]
            if path[2] == "model" and self.main.has(("defaults", "model")):
                return self.main, ("defaults", *path[2:])
        if path[:1] == ("edges",) and path[2:3] == ("channel",) and not self.main.has(path[:3]):
            shared = ("defaults", "channel")
            if self.main.has(shared):
                return self.main, (*shared, *path[3:])
        return self.main, path

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
