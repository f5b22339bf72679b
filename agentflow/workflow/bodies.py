"""From a file to the tree of its bodies: with agent files, loops, and the workflows that it uses as nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentflow.workflow import library
from agentflow.workflow.checks import Checks
from agentflow.workflow.frames import Body
from agentflow.workflow.groups import Loop, LoopSpec, SubWorkflow, WrittenNode
from agentflow.workflow.location import KeyPath, shown_file
from agentflow.workflow.origins import Origins
from agentflow.workflow.parts import Edge
from agentflow.workflow.problems import Problem, WorkflowProblemsError, described, fail, quoted, suggestion
from agentflow.workflow.repair import repaired
from agentflow.workflow.shapes import shape_problems
from agentflow.workflow.source import Source, read_yaml
from agentflow.workflow.uses import AgentFiles
from agentflow.workflow.written import WorkflowFile

MOST_FILES = 20
"""Of workflows that use one another in a row."""


@dataclass
class Bodies:
    """Reads a workflow and those it uses, each file once.

    Attributes:
        problems: everything that is wrong in any of them.
    """

    problems: list[Problem] = field(default_factory=list)
    _read: dict[Path, Body | None] = field(default_factory=dict)

    def of(self, source: Source, folder: Path, chain: tuple[Path, ...]) -> Body | None:
        """Return the body of a file; None when it is so wrong that nothing more can be said of it.

        Args:
            folder: near which other files are looked for.
            chain: the files that led here, this one last.
        """
        if not isinstance(source.value, dict):
            what = f"a workflow is a mapping, not {described(source.value)}"
            fail(source.location(()), what, "Start with `workflow: name`, then `agents:` and `nodes:`.")
        if not {"workflow", "agents", "nodes"} & set(source.value) and {"model", "system"} & set(source.value):
            fix = "A workflow names it: `agents: {name: {use: FILE}}`."
            fail(source.location(()), "this is an agent file, not a workflow", fix)
        files = AgentFiles(source, folder)
        data, origins = files.merged()
        self.problems += files.problems
        errors: list[ErrorDetails] = []
        file: WorkflowFile | None
        try:
            file = WorkflowFile.model_validate(data)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            self.problems += shape_problems(errors, origins)
            file = repaired(data, errors)
        if file is None:
            return None
        body = _Builder(self, file, origins, folder, chain).body(file.nodes, file.edges, (), None)
        self.problems += Checks(body).problems()
        return body

    def sub(
        self, node: SubWorkflow, path: KeyPath, origins: Origins, folder: Path, chain: tuple[Path, ...]
    ) -> Body | None:
        """Return the body of a workflow that is used as a node; None when it can't be used."""
        found = self._find(node.workflow, folder, chain)
        if isinstance(found, tuple):
            self.problems.append(origins.problem(path, *found))
            return None
        place = found.resolve()
        if place not in self._read:
            self._read[place] = None
            before = len(self.problems)
            try:
                body = self.of(read_yaml(found), found.parent, (*chain, place))
            except WorkflowProblemsError as error:
                self.problems += error.problems
            else:
                self._read[place] = body if len(self.problems) == before else None
        return self._read[place]

    def _find(self, ref: str, folder: Path, chain: tuple[Path, ...]) -> Path | tuple[str, str]:
        """Return the file of a workflow that is used as a node, or what is wrong with it and how to mend it."""
        if not library.is_plain(ref):
            fix = "Name a file below the workflow's folder, or a workflow that ships, without '..'."
            return f"the path {quoted(ref)} leaves the project", fix
        found = library.find_near(ref, folder, "workflows")
        if found is None:
            return f"there is no workflow {quoted(ref)}", suggestion(ref, library.shipped("workflows"))
        place = found.resolve()
        if place in chain:
            shown = " -> ".join(shown_file(str(file)) for file in (*chain[chain.index(place) :], place))
            return f"the workflow contains itself: {shown}", "What is done again and again goes into a `loop:`."
        if len(chain) >= MOST_FILES:
            return f"more than {MOST_FILES} workflows use one another in a row", "Put some of them into one file."
        return found


@dataclass(frozen=True)
class _Builder:
    """Builds the bodies of one file."""

    bodies: Bodies
    file: WorkflowFile
    origins: Origins
    folder: Path
    chain: tuple[Path, ...]

    def body(
        self, nodes: dict[str, WrittenNode], edges: tuple[Edge, ...], path: KeyPath, loop: LoopSpec | None
    ) -> Body:
        """Return a body with those inside it."""
        made = Body(self.file, self.origins, nodes, edges, path, loop)
        for name, node in nodes.items():
            inner: Body | None = None
            if isinstance(node, Loop):
                inner = self.body(node.loop.nodes, node.loop.edges, made.node_path(name, "loop"), node.loop)
            elif isinstance(node, SubWorkflow):
                at = made.node_path(name, "workflow")
                inner = self.bodies.sub(node, at, self.origins, self.folder, self.chain)
            if inner is not None:
                made.inner[name] = inner
        return made
