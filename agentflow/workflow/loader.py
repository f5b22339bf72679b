"""From a file, or the name of a shipped workflow, to a checked `Workflow`."""

from __future__ import annotations

from pathlib import Path

from agentflow.errors import WorkflowError
from agentflow.workflow import library
from agentflow.workflow.bodies import Bodies
from agentflow.workflow.expand import Expansion
from agentflow.workflow.graph import build_graph, sinks
from agentflow.workflow.problems import quoted, raise_problems, suggestion
from agentflow.workflow.schema import Workflow
from agentflow.workflow.source import Source, parse_yaml, read_yaml


def load_workflow(ref: str | Path) -> Workflow:
    """Load a workflow by path, or by name: `hotpotqa` or `workflows/hotpotqa.yaml`.

    Names are looked for in the working folder first, then among the shipped ones. Raises `WorkflowError` with
    every problem of the file and of the agent files it uses.
    """
    path = find_workflow(ref)
    return _build(read_yaml(path), path.parent)


def parse_workflow(text: str, file: str = "<text>", folder: Path | None = None) -> Workflow:
    """Load a workflow from text; agent files are looked for in `folder`. Raises `WorkflowError`."""
    return _build(parse_yaml(text, file), folder or Path())


def find_workflow(ref: str | Path) -> Path:
    """Return the file a reference means. Raises `WorkflowError` when there is none."""
    path = Path(ref)
    below = [Path("workflows") / path] if len(path.parts) == 1 else []
    candidates = [path, *library.with_suffixes(path)]
    candidates += [candidate for folder in below for candidate in library.with_suffixes(folder)]
    for candidate in candidates:
        if library.is_file(candidate):
            return candidate
    found = library.find(str(ref))
    if found is not None:
        return found
    if library.exists(path) and (path.is_dir() or path.suffix in library.SUFFIXES):
        return path  # reading it says what is wrong with it
    stem = path.stem if path.suffix in library.SUFFIXES else path.name
    fix = suggestion(stem, {*library.shipped("workflows"), *_local()})
    raise WorkflowError(f"there is no workflow {quoted(ref)}.", fix=fix or "Check the path.")


def _local() -> list[str]:
    return [path.stem for path in Path("workflows").glob("*.y*ml")]


def _build(source: Source, folder: Path) -> Workflow:
    bodies = Bodies()
    path = Path(source.file)
    body = bodies.of(source, folder, (path.resolve(),))
    if body is None or bodies.problems:
        raise_problems(bodies.problems)
    return _with_answer(Expansion(body).workflow())


def _with_answer(workflow: Workflow) -> Workflow:
    """Name the node whose text is scored, when the task leaves it open: the only end of the graph."""
    task = workflow.task
    if task is None or task.answer is not None:
        return workflow
    answer = sinks(build_graph(workflow))[0]
    return workflow.model_copy(update={"task": task.model_copy(update={"answer": answer})})
