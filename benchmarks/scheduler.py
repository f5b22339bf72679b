"""What the runtime itself costs: graphs of nodes that do nothing, as a chain, a fan-out and a diamond.

Ours run as a user's do: a checked workflow, every result and event in the run's folder. LangGraph runs the same graph
of Python functions, once as it is (nothing is kept) and once with its SQLite checkpointer, in a file beside ours. Both
sides build their graph outside the time. The run's files are handed to the system, not forced to the disk.
"""

from __future__ import annotations

import operator
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import Binding, bind
from agentflow.runtime.manifest import manifest
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore
from agentflow.tools import Toolbox
from agentflow.workflow.loader import parse_workflow
from benchmarks.common import arguments, interleaved, ratio, report

NODES, MANY = 1_000, 10_000
Edges = list[tuple[int, int]]


def chain(n: int) -> Edges:
    """Each node after the one before."""
    return [(i - 1, i) for i in range(1, n)]


def fan_out(n: int) -> Edges:
    """One node, and all others after it."""
    return [(0, i) for i in range(1, n)]


def diamond(n: int) -> Edges:
    """A fan-out that is gathered by one last node."""
    return [*((0, i) for i in range(1, n - 1)), *((i, n - 1) for i in range(1, n - 1))]


SHAPES: dict[str, Callable[[int], Edges]] = {"chain": chain, "fan-out": fan_out, "diamond": diamond}


def noop() -> str:
    """What a node does."""
    return "x"


def written(edges: Edges, n: int) -> str:
    """The graph as a workflow file."""
    lines = ["workflow: many", "agents: {}", "nodes:", *(f"  n{i}: {{tool: noop}}" for i in range(n)), "edges:"]
    return "\n".join([*lines, *(f"  - {{from: n{a}, to: n{b}}}" for a, b in edges)]) + "\n"


class Ours:
    """One run of a bound workflow, kept in a folder of its own."""

    def __init__(self, binding: Binding, folder: Path) -> None:
        self._binding, self._folder = binding, folder

    def prepare(self) -> None:
        """Throw the last run away."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(self) -> None:
        """Run."""
        store = RunStore.create(self._folder, "many", manifest(self._binding, RunOptions(), channel=None, inputs={}))
        (result,) = Orchestrator(self._binding, EnginePool(), store=store).run([("run", {})])
        assert len(result.nodes) == len(self._binding.workflow.nodes)
        assert not result.errors


class _State(TypedDict):
    said: Annotated[list[str], operator.add]


def langgraph_of(edges: Edges, n: int) -> StateGraph[Any]:
    """The same graph for LangGraph; a node that hears several waits for all of them."""
    graph: StateGraph[Any] = StateGraph(_State)
    heard: dict[int, list[str]] = {i: [] for i in range(n)}
    for sender, receiver in edges:
        heard[receiver].append(f"n{sender}")
    for i in range(n):
        graph.add_node(f"n{i}", lambda _: {"said": [noop()]})
    for i, senders in heard.items():
        graph.add_edge(START if not senders else senders[0] if len(senders) == 1 else senders, f"n{i}")
    speaking = {sender for sender, _ in edges}
    for i in set(range(n)) - speaking:
        graph.add_edge(f"n{i}", END)
    return graph


class Theirs:
    """One run of LangGraph, with its checkpoints in a file, or without."""

    def __init__(self, graph: StateGraph[Any], n: int, file: Path | None) -> None:
        self._graph, self._n, self._file = graph, n, file
        self._compiled = graph.compile()

    def prepare(self) -> None:
        """A new file for a new run."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def __call__(self) -> None:
        """Run."""
        config: dict[str, Any] = {"recursion_limit": self._n + 10, "configurable": {"thread_id": "1"}}
        if self._file is None:
            found = self._compiled.invoke({"said": []}, config)
        else:
            with SqliteSaver.from_conn_string(str(self._file)) as saver:
                found = self._graph.compile(checkpointer=saver).invoke({"said": []}, config)
        assert len(found["said"]) == self._n


def ways(folder: Path, n: int, *, rivals: Sequence[str]) -> dict[str, Any]:
    """Every way of running every shape."""
    found: dict[str, Any] = {}
    for shape, of in SHAPES.items():
        edges = of(n)
        binding = bind(parse_workflow(written(edges, n)), Toolbox([noop]))
        found[f"{shape} {n:,}, ours"] = Ours(binding, folder / f"{shape}-{n}")
        for rival in rivals:
            file = folder / f"{shape}.sqlite" if rival == "LangGraph, SQLite" else None
            found[f"{shape} {n:,}, {rival}"] = Theirs(langgraph_of(edges, n), n, file)
    return found


def reading(n: int) -> list[float]:
    """Seconds to read, check and bind the file of each shape."""
    seconds = []
    for of in SHAPES.values():
        text = written(of(n), n)
        start = time.perf_counter()
        bind(parse_workflow(text), Toolbox([noop]))
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "")
    rounds, rare = (3, 1) if chosen.quick else (9, 3)
    reading(NODES)  # imports
    read = {f"read {n:,} nodes": reading(n) for n in (NODES, MANY)}
    with tempfile.TemporaryDirectory() as place:
        rivals = ("LangGraph",) if chosen.quick else ("LangGraph", "LangGraph, SQLite")
        small = ways(Path(place), NODES, rivals=rivals)
        large = ways(Path(place), MANY, rivals=())
        few = {**dict.fromkeys(large, rare), **{name: rare for name in small if "SQLite" in name}}
        seconds = interleaved(rounds, small | large, few=few)
    ours = {shape: seconds[f"{shape} {NODES:,}, ours"] for shape in SHAPES}
    many = {shape: seconds[f"{shape} {MANY:,}, ours"] for shape in SHAPES}
    over = {rival: max(ratio(ours[s], seconds[f"{s} {NODES:,}, {rival}"]) for s in SHAPES) for rival in rivals}
    figures = {
        "ms_per_node": max(1000 * median(values) / NODES for values in ours.values()),
        "ours_over_langgraph": over["LangGraph"],
        "ours_over_langgraph_sqlite": over.get("LangGraph, SQLite"),
        "growth_10x": max(ratio(many[s], ours[s]) for s in SHAPES),
        "reading_growth_10x": ratio(read[f"read {MANY:,} nodes"], read[f"read {NODES:,} nodes"]),
    }
    report("Nodes that do nothing; figures are of the worst shape", read | seconds, figures)


if __name__ == "__main__":
    main()
