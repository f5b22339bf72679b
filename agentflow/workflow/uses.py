"""What a workflow takes from other files and agents: `extends:` at its top, `use:` and `extends:` in its agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agentflow.workflow import library
from agentflow.workflow.lineage import KEY, lineage, merged
from agentflow.workflow.location import KeyPath
from agentflow.workflow.origins import Layer, Origins
from agentflow.workflow.problems import Problem, WorkflowProblemsError, described, quoted, suggestion
from agentflow.workflow.source import Source, read_yaml


@dataclass
class AgentFiles:
    """Reads the files that one workflow is made of, each once.

    `folder` is the workflow's, near which a `use:` is looked for.
    """

    main: Source
    folder: Path
    problems: list[Problem] = field(default_factory=list)
    _read: dict[tuple[Path, str], list[Source] | None] = field(default_factory=dict)
    _blamed: dict[tuple[Path, str], KeyPath] = field(default_factory=dict)
    _circles: list[tuple[Any, ...]] = field(default_factory=list)

    def merged(self) -> tuple[dict[Any, Any], Origins]:
        """Return the workflow's raw mapping with everything put in, and where everything came from.

        Raises:
            WorkflowProblemsError: a file that the workflow extends can't be had.
        """
        data = merged(self._line) if KEY in self.main.value else dict(self.main.value)
        agents, layers = data.get("agents"), dict[str, tuple[Layer, ...]]()
        if isinstance(agents, dict):
            data["agents"] = {name: self._agent(name, entry, layers) for name, entry in agents.items()}
        return data, Origins(self.main, layers, tuple(self._line[1:]))

    @cached_property
    def _line(self) -> list[Source]:
        """The workflow's file and those that it extends."""
        return lineage(self.main, self.folder, "a workflow", _workflow, library.shipped("workflows"))

    def _agent(self, name: Any, entry: Any, layers: dict[str, tuple[Layer, ...]]) -> Any:
        if not isinstance(entry, dict) or not {"use", KEY} & set(entry):
            return entry
        before = len(self.problems)
        found = self._layers(name, ())
        layers[name] = tuple(found)
        made: dict[Any, Any] = (
            {"model": "unknown"} if len(self.problems) > before else {}
        )  # check the rest all the same
        for source, path in reversed(found):
            made |= _at(source, path)
        return {key: value for key, value in made.items() if key not in ("use", KEY)}

    def _layers(self, name: Any, chain: tuple[Any, ...]) -> list[Layer]:
        """Everything that an agent is made of, what wins first."""
        path = ("agents", name)
        layers: list[Layer] = [(source, path) for source in self._line if isinstance(_at(source, path), Mapping)]
        for layer in layers:
            written = _at(*layer)
            if "use" in written and KEY in written:
                self._note(layer, KEY, "an agent takes its keys from one place: `use` names a file, `extends` an agent")
                return layers
            if "use" in written:
                return [*layers, *((source, ()) for source in self._files(layer, written["use"]))]
            if KEY in written:
                return [*layers, *self._extended(layer, written[KEY], (*chain, name))]
        return layers

    def _extended(self, layer: Layer, other: Any, chain: tuple[Any, ...]) -> list[Layer]:
        agents = [name for source in self._line for name in _mapping(source.value.get("agents"))]
        if not isinstance(other, str):
            self._note(layer, KEY, f"expected the name of an agent, got {described(other)}")
        elif other in chain:
            circle = chain[chain.index(other) :]
            if not any(set(circle) == set(told) for told in self._circles):
                shown = " -> ".join([*circle, other])
                self._note(layer, KEY, f"agents extend one another in a circle: {shown}", "Remove one `extends`.")
            self._circles.append(circle)
        elif other not in agents:
            is_file = "/" in other or other.endswith(library.SUFFIXES)
            fix = f"Write `use: {other}` for an agent of a file." if is_file else suggestion(other, agents)
            self._note(layer, KEY, f"unknown agent {quoted(other)}", fix)
        else:
            return self._layers(other, chain)
        return []

    def _files(self, layer: Layer, ref: Any) -> list[Source]:
        """The file that `use:` means, and those that it extends."""
        if not isinstance(ref, str):
            self._note(layer, "use", f"expected the path of an agent file, got {described(ref)}")
            return []
        folder = self.folder if layer[0] is self.main else Path(layer[0].file).parent
        if (folder, ref) not in self._read:
            self._read[folder, ref] = self._load(layer, ref, folder)
            self._blamed[folder, ref] = layer[1]
        elif self._read[folder, ref] is None and self._blamed[folder, ref] != layer[1]:
            self._note(layer, "use", f"the agent file {quoted(ref)} can't be used", "See the other message about it.")
        return self._read[folder, ref] or []

    def _load(self, layer: Layer, ref: str, folder: Path) -> list[Source] | None:
        if not ref.strip():
            self._note(
                layer, "use", "the path of an agent file is empty", "Write for example `use: agents/reader.yaml`."
            )
            return None
        if not library.is_plain(ref):
            fix = "Name a file below the workflow's folder, such as agents/reader.yaml, without '..'."
            self._note(layer, "use", f"the path {quoted(ref)} leaves the project", fix)
            return None
        found = library.find_near(ref, folder, "agents")
        if found is None:
            self._note(layer, "use", f"there is no agent file {quoted(ref)}", suggestion(ref, _shipped_agents()))
            return None
        try:
            line = lineage(read_yaml(found), found.parent, "an agent file", _agent_file, library.shipped("agents"))
        except WorkflowProblemsError as error:
            self.problems += error.problems
            return None
        wrong = [problem for source in line if (problem := _misuse(source))]
        self.problems += wrong
        return None if wrong else line

    def _note(self, layer: Layer, key: str, what: str, fix: str = "") -> None:
        source, path = layer
        self.problems.append(Problem(source.location((*path, key)), (*path, key), what, fix))


def _workflow(ref: str, folder: Path) -> Path | None:
    return library.find_near(ref, folder, "workflows")


def _agent_file(ref: str, folder: Path) -> Path | None:
    return library.find_near(ref, folder, "agents")


def _misuse(source: Source) -> Problem | None:
    if not isinstance(source.value, Mapping):
        what = f"an agent file holds a mapping, not {described(source.value)}"
        return Problem(source.location(()), (), what, "Write `model: ...` and `system: ...`.")
    if "nodes" in source.value:
        return Problem(source.location(()), (), "this is a workflow, not an agent file")
    if "use" in source.value:
        place = source.location(("use",), key=True)
        return Problem(place, ("use",), "an agent file names another one with `extends`", "Write `extends: ...`.")
    return None


def _at(source: Source, path: tuple[str | int, ...]) -> Any:
    value: Any = source.value
    for step in path:
        value = _mapping(value).get(step)
    return value


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _shipped_agents() -> list[str]:
    return [f"agents/{name}.yaml" for name in library.shipped("agents")]
