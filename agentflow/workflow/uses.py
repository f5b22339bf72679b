"""Agent files: `use: agents/reader.yaml` in a workflow, overridden key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentflow.workflow import library
from agentflow.workflow.location import KeyPath
from agentflow.workflow.origins import Origins
from agentflow.workflow.problems import Problem, WorkflowProblemsError, described, quoted, suggestion
from agentflow.workflow.source import Source, read_yaml


@dataclass
class AgentFiles:
    """Reads the agent files of one workflow, each once.

    `folder` is the workflow's; a `use:` is looked for in it, in its parent when it is called `workflows`,
    in the working folder, and in the shipped library, in this order.
    """

    main: Source
    folder: Path
    problems: list[Problem] = field(default_factory=list)
    _read: dict[str, Source | None] = field(default_factory=dict)
    _used: dict[str, Source] = field(default_factory=dict)

    def merged(self) -> tuple[dict[Any, Any], Origins]:
        """Return the workflow's raw mapping with agent files put in, and where everything came from."""
        data = dict(self.main.value)
        agents = data.get("agents")
        if isinstance(agents, dict):
            data["agents"] = {name: self._agent(name, entry) for name, entry in agents.items()}
        return data, Origins(self.main, self._used)

    def _agent(self, name: Any, entry: Any) -> Any:
        if not isinstance(entry, dict) or "use" not in entry:
            return entry
        own = {key: value for key, value in entry.items() if key != "use"}
        source = self._file(("agents", name, "use"), entry["use"])
        if source is None:
            return {"model": "unknown", **own}  # so that everything else can still be checked
        self._used[name] = source
        return {**source.value, **own}

    def _file(self, path: KeyPath, ref: Any) -> Source | None:
        if not isinstance(ref, str):
            self._note(path, f"expected the path of an agent file, got {described(ref)}")
            return None
        if ref not in self._read:
            self._read[ref] = self._load(path, ref)
        elif self._read[ref] is None:
            self._note(path, f"the agent file {quoted(ref)} can't be used", "See the other message about it.")
        return self._read[ref]

    def _load(self, path: KeyPath, ref: str) -> Source | None:
        if not ref.strip():
            self._note(path, "the path of an agent file is empty", "Write for example `use: agents/reader.yaml`.")
            return None
        if not library.is_plain(ref):
            fix = "Name a file below the workflow's folder, such as agents/reader.yaml, without '..'."
            self._note(path, f"the path {quoted(ref)} leaves the project", fix)
            return None
        found = self._find(ref)
        if found is None:
            self._note(path, f"there is no agent file {quoted(ref)}", _known_files(ref))
            return None
        try:
            source = read_yaml(found)
        except WorkflowProblemsError as error:
            self.problems += error.problems
            return None
        problem = _misuse(source)
        if problem:
            self.problems.append(problem)
        return None if problem else source

    def _find(self, ref: str) -> Path | None:
        above = [self.folder.parent] if self.folder.name == "workflows" else []
        for base in (self.folder, *above, Path()):
            for candidate in library.with_suffixes(base / ref):
                if library.is_file(candidate):
                    return candidate
        return library.find(ref, "agents")

    def _note(self, path: KeyPath, what: str, fix: str = "") -> None:
        self.problems.append(Problem(self.main.location(path), path, what, fix))


def _misuse(source: Source) -> Problem | None:
    if not isinstance(source.value, Mapping):
        what = f"an agent file holds a mapping, not {described(source.value)}"
        return Problem(source.location(()), (), what, "Write `model: ...` and `system: ...`.")
    if "nodes" in source.value:
        return Problem(source.location(()), (), "this is a workflow, not an agent file")
    if "use" in source.value:
        return Problem(source.location(("use",), key=True), ("use",), "an agent file can't use another one")
    return None


def _known_files(ref: str) -> str:
    return suggestion(ref, [f"agents/{name}.yaml" for name in library.shipped("agents")])
