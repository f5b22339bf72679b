"""Large graphs: the work grows as the nodes do. Function calls are counted, because time is another machine's."""

from __future__ import annotations

import sys
import threading

import pytest

from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore
from agentflow.tools import Toolbox
from agentflow.workflow.loader import parse_workflow

SHAPES = {
    "chain": lambda n: [(i - 1, i) for i in range(1, n)],
    "fan-out": lambda n: [(0, i) for i in range(1, n)],
    "diamond": lambda n: [*((0, i) for i in range(1, n - 1)), *((i, n - 1) for i in range(1, n - 1))],
}


def noop() -> str:
    return "x"


def fails() -> str:
    raise LookupError


def counted(work):
    """How many functions `work` calls on this thread and on those that it starts; C functions and generators too."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def work(shape, n, tmp_path, last="noop"):
    """Read, bind and run a graph, and keep the run."""
    edges = SHAPES[shape](n)
    lines = ["workflow: many", "agents: {}", "nodes:", *(f"  n{i}: {{tool: noop}}" for i in range(n - 1))]
    lines += [f"  n{n - 1}: {{tool: {last}, map: {{over: {list(range(n))}}}}}", "edges:"]
    text = "\n".join([*lines, *(f"  - {{from: n{a}, to: n{b}}}" for a, b in edges)])

    def run():
        binding = bind(parse_workflow(text), Toolbox([noop, fails]))
        store = RunStore.create(tmp_path, "many", {})
        (result,) = Orchestrator(binding, EnginePool(), store=store).run([("run", {})])
        assert bool(result.errors) == (last == "fails")

    return run


@pytest.mark.parametrize("last", ["noop", "fails"])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_the_nodes_are_four_times_the_work(shape, last, tmp_path):
    work(shape, 10, tmp_path, last)()  # imports
    few, many = (counted(work(shape, n, tmp_path, last)) for n in (100, 400))
    assert many < 5 * few
