"""What the runtime itself costs: graphs of nodes that do nothing, as a chain, a fan-out and a diamond.

Ours run as a user's do: a checked workflow, every result and event written to the run's folder before the next node
begins. LangGraph runs the same graph of Python functions as it comes, where nothing is kept, and that is what ours are
held against, though they do more. Beside it, like with like: both keeping nothing; LangGraph with its checkpoints in
memory; and in SQLite, in a file beside ours that is handed to the system and not forced to the disk, as ours are.

Both sides build their graphs outside the time, and neither pays for collecting the garbage of the other's.
"""

from __future__ import annotations

import gc
import operator
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
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
from benchmarks.common import arguments, interleaved, paired, ratio, report

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
    """One run of a bound workflow, kept in a folder of its own, or not at all."""

    def __init__(self, binding: Binding, folder: Path | None) -> None:
        self._binding, self._folder = binding, folder

    def prepare(self) -> None:
        """Throw the last run away."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(self) -> None:
        """Run."""
        store = None
        if self._folder is not None:
            kept = manifest(self._binding, RunOptions(), channel=None, inputs={})
            store = RunStore.create(self._folder, "many", kept)
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
    """One run of LangGraph, with its checkpoints somewhere, or without."""

    def __init__(self, graph: StateGraph[Any], n: int, saver: Callable[[], Any] | None) -> None:
        self._graph, self._n, self._saver = graph, n, saver
        self._compiled = graph.compile()

    def prepare(self) -> None:
        """Nothing is left of the last run."""
        if self._saver is not None:
            self._compiled = self._graph.compile(checkpointer=self._saver())

    def __call__(self) -> None:
        """Run."""
        config: dict[str, Any] = {"recursion_limit": self._n + 10, "configurable": {"thread_id": "1"}}
        found = self._compiled.invoke({"said": []}, config)
        assert len(found["said"]) == self._n


def in_file(file: Path) -> SqliteSaver:
    """A new file of checkpoints."""
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    connection = sqlite3.connect(file, check_same_thread=False)
    connection.execute("PRAGMA synchronous=OFF")
    return SqliteSaver(connection)


KEEPING = ("ours", "LangGraph", "ours, nothing kept", "LangGraph, in memory", "LangGraph, SQLite")


def ways(folder: Path, n: int, *, keeping: Sequence[str]) -> dict[str, Any]:
    """Every way of running every shape."""
    found: dict[str, Any] = {}
    for shape, of in SHAPES.items():
        edges = of(n)
        binding = bind(parse_workflow(written(edges, n)), Toolbox([noop]))
        graph = langgraph_of(edges, n)
        made = {
            "ours": lambda b=binding, s=shape: Ours(b, folder / f"{s}-{n}"),
            "ours, nothing kept": lambda b=binding: Ours(b, None),
            "LangGraph": lambda g=graph: Theirs(g, n, None),
            "LangGraph, in memory": lambda g=graph: Theirs(g, n, InMemorySaver),
            "LangGraph, SQLite": lambda g=graph, s=shape: Theirs(g, n, lambda: in_file(folder / f"{s}.sqlite")),
        }
        found |= {f"{shape} {n:,}, {how}": made[how]() for how in keeping}
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
    rounds, rare = (5, 1) if chosen.quick else (15, 3)
    reading(NODES)  # imports
    read = {f"read {n:,} nodes": reading(n) for n in (NODES, MANY)}
    with tempfile.TemporaryDirectory() as place:
        small = ways(Path(place), NODES, keeping=KEEPING)
        large = ways(Path(place), MANY, keeping=KEEPING[:1])
        few = {**dict.fromkeys(large, 3), **{name: rare for name in small if name.endswith(("memory", "SQLite"))}}
        gc.collect()
        gc.freeze()
        seconds = interleaved(rounds, small | large, few=few)
    taken = {how: {shape: seconds[f"{shape} {NODES:,}, {how}"] for shape in SHAPES} for how in KEEPING}
    ours, bare = taken["ours"], taken["ours, nothing kept"]
    many = {shape: seconds[f"{shape} {MANY:,}, ours"] for shape in SHAPES}
    figures = {
        "ms_per_node": max(1000 * median(values) / NODES for values in ours.values()),
        "ours_over_langgraph": max(paired(ours[s], taken["LangGraph"][s]) for s in SHAPES),
        "both_keeping_nothing": max(paired(bare[s], taken["LangGraph"][s]) for s in SHAPES),
        "ours_over_langgraph_in_memory": max(ratio(ours[s], taken["LangGraph, in memory"][s]) for s in SHAPES),
        "ours_over_langgraph_sqlite": max(ratio(ours[s], taken["LangGraph, SQLite"][s]) for s in SHAPES),
        "growth_10x": max(ratio(many[s], ours[s]) for s in SHAPES),
        "reading_growth_10x": ratio(read[f"read {MANY:,} nodes"], read[f"read {NODES:,} nodes"]),
    }
    by_shape = {s: round(paired(ours[s], taken["LangGraph"][s]), 2) for s in SHAPES}
    report(
        "Nodes that do nothing; figures are of the worst shape", read | seconds, figures, ours_over_langgraph=by_shape
    )


if __name__ == "__main__":
    main()
