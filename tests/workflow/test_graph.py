from __future__ import annotations

import itertools
import time

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.workflow import (
    Workflow,
    ancestors,
    build_graph,
    find_cycle,
    parse_workflow,
    sinks,
    topological_order,
)
from agentflow.workflow.graph import cycles, graph_of, sources, unreached

from .samples import GOOD


def chain(length: int) -> Workflow:
    nodes = {f"n{i}": {"agent": "a", "prompt": "hi"} for i in range(length)}
    edges = [{"from": f"n{i}", "to": f"n{i + 1}"} for i in range(length - 1)]
    data = {"workflow": "chain", "agents": {"a": {"model": "m"}}, "nodes": nodes, "edges": edges}
    return Workflow.model_validate(data)


def test_the_graph_keeps_the_order_written() -> None:
    graph = build_graph(parse_workflow(GOOD))
    assert list(graph) == ["read", "answer", "each"]
    assert sources(graph) == ["read"]
    assert sinks(graph) == ["answer", "each"]


def test_the_order_puts_ancestors_first_and_else_keeps_what_was_written() -> None:
    graph = graph_of("cabd", [("a", "b"), ("b", "c"), ("a", "c")])
    assert topological_order(graph) == ["a", "b", "c", "d"]
    assert topological_order(graph_of("dcba", [])) == ["d", "c", "b", "a"]


def test_ancestors_are_all_nodes_above() -> None:
    graph = graph_of("abcde", [("a", "b"), ("b", "c"), ("d", "c"), ("c", "e")])
    assert ancestors(graph, "e") == {"a", "b", "c", "d"}
    assert ancestors(graph, "a") == set()


def test_edges_to_unknown_nodes_are_left_out() -> None:
    assert list(graph_of("ab", [("a", "b"), ("a", "z"), ("z", "b")]).edges) == [("a", "b")]


def test_a_cycle_is_named_whole_from_its_first_node() -> None:
    assert find_cycle(graph_of("abcd", [("d", "b"), ("b", "c"), ("c", "d"), ("a", "b")])) == [
        "b",
        "c",
        "d",
        "b",
    ]
    assert find_cycle(graph_of("ab", [("a", "b")])) is None
    assert find_cycle(graph_of("ab", [("b", "b")])) == ["b", "b"]


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_cycles_are_found_exactly_when_there_are_any(pairs: set[tuple[int, int]]) -> None:
    graph = graph_of([str(n) for n in range(8)], [(str(a), str(b)) for a, b in pairs])
    found = cycles(graph)
    assert bool(found) != nx.is_directed_acyclic_graph(graph)
    for cycle in found:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(graph.has_edge(a, b) for a, b in itertools.pairwise(cycle))


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_unreached_agrees_with_a_search_for_every_pair(pairs: set[tuple[int, int]]) -> None:
    graph = graph_of([str(n) for n in range(10)], [(str(a), str(b)) for a, b in pairs if a < b])
    wanted = [(str(a), str(b)) for a in range(10) for b in range(10)]
    assert unreached(graph, wanted) == {(a, b) for a, b in wanted if a not in ancestors(graph, b)}


def test_unreached_works_for_more_nodes_than_one_block_of_bits() -> None:
    graph = build_graph(chain(3000))
    pairs = [(f"n{i}", f"n{2999}") for i in range(2999)] + [("n2999", "n0"), ("n5", "n5")]
    assert unreached(graph, pairs) == {("n2999", "n0"), ("n5", "n5")}


@pytest.mark.parametrize("length", [10_000])
def test_long_chains_take_no_recursion_and_little_time(length: int) -> None:
    graph = build_graph(chain(length))
    begin = time.monotonic()
    assert topological_order(graph)[-1] == f"n{length - 1}"
    assert len(ancestors(graph, f"n{length - 1}")) == length - 1
    graph.add_edge(f"n{length - 1}", "n0")
    cycle = find_cycle(graph)
    assert cycle is not None
    assert len(cycle) == length + 1
    assert time.monotonic() - begin < 10
