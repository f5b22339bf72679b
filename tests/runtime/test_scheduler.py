"""Scheduling: order, failures that stop their dependants only, maps, and linear growth."""

from __future__ import annotations

import random
import time

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.runtime.scheduler import Scheduler, Unit

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def drain(scheduler: Scheduler) -> list[str]:
    done = []
    while not scheduler.finished:
        unit = scheduler.take()
        done.append(str(unit))
        scheduler.finish(unit)
    return done


def test_early_items_finish_before_late_ones_begin():
    assert drain(Scheduler(list(DIAMOND), DIAMOND, ["x", "y"])) == [
        "x/a", "x/b", "x/c", "x/d", "y/a", "y/b", "y/c", "y/d",
    ]  # fmt: skip


def test_a_node_waits_for_all_its_parents():
    scheduler = Scheduler(list(DIAMOND), DIAMOND, ["x"])
    scheduler.finish(scheduler.take())
    b, c = scheduler.take(), scheduler.take()
    scheduler.finish(c)
    assert scheduler.peek() is None
    scheduler.finish(b)
    assert scheduler.peek() == Unit("x", "d")


def test_a_failure_skips_what_depends_on_it_and_nothing_else():
    scheduler = Scheduler(list(DIAMOND), DIAMOND, ["x", "y"])
    scheduler.finish(scheduler.take())
    assert scheduler.fail(scheduler.take()) == [Unit("x", "d")]
    assert drain(scheduler) == ["x/c", "y/a", "y/b", "y/c", "y/d"]


def test_a_mapped_node_is_done_with_its_last_child():
    scheduler = Scheduler(["a", "b"], {"a": [], "b": ["a"]}, ["x"])
    scheduler.expand(scheduler.take(), 3)
    children = [scheduler.take() for _ in range(3)]
    assert [scheduler.finish(child) for child in children] == [False, False, True]
    assert scheduler.take() == Unit("x", "b")


def test_a_map_over_nothing_is_done_at_once():
    scheduler = Scheduler(["a", "b"], {"a": [], "b": ["a"]}, ["x"])
    scheduler.expand(scheduler.take(), 0)
    assert drain(scheduler) == ["x/b"]


def test_a_failed_child_takes_its_waiting_siblings_and_dependants_along():
    scheduler = Scheduler(["a", "b"], {"a": [], "b": ["a"]}, ["x"])
    scheduler.expand(scheduler.take(), 3)
    first, second = scheduler.take(), scheduler.take()
    assert scheduler.fail(first) == [Unit("x", "b")]
    assert scheduler.peek() is None  # the third child never starts
    assert not scheduler.finish(second)
    assert scheduler.finished


def test_a_unit_that_is_put_back_keeps_its_place():
    scheduler = Scheduler(list(DIAMOND), DIAMOND, ["x", "y"])
    unit = scheduler.take()
    scheduler.put_back(unit)
    assert scheduler.running == 0
    assert scheduler.take() == unit


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 12), items=st.integers(1, 4), fails=st.booleans())
def test_random_graphs_run_every_node_once_after_its_parents(seed, nodes, items, fails):
    rng = random.Random(seed)
    parents = {str(n): [str(p) for p in range(n) if rng.random() < 0.3] for n in range(nodes)}
    names = [f"i{n}" for n in range(items)]
    scheduler = Scheduler(list(parents), parents, names)
    graph = nx.DiGraph([(p, n) for n, ps in parents.items() for p in ps])
    graph.add_nodes_from(parents)
    ended: dict[tuple[str, str], str] = {}
    flying: list[Unit] = []
    while not scheduler.finished:
        while scheduler.peek() and (not flying or rng.random() < 0.6):
            unit = scheduler.take()
            assert all(ended[unit.item, p] == "done" for p in parents[unit.node])
            flying.append(unit)
        unit = flying.pop(rng.randrange(len(flying)))
        if fails and rng.random() < 0.2:
            ended[unit.item, unit.node] = "failed"
            for skipped in scheduler.fail(unit):
                assert (skipped.item, skipped.node) not in ended
                ended[skipped.item, skipped.node] = "skipped"
        else:
            ended[unit.item, unit.node] = "done"
            scheduler.finish(unit)
    assert set(ended) == {(i, n) for i in names for n in parents}
    for (item, node), how in ended.items():
        lost = any(ended[item, a] == "failed" for a in nx.ancestors(graph, node))
        assert (how == "skipped") == lost


def test_ten_thousand_nodes_take_no_more_than_ten_times_a_thousand():
    def seconds(n: int) -> float:
        parents = {str(i): [str(i - 1)] if i else [] for i in range(n)}
        start = time.perf_counter()
        assert len(drain(Scheduler(list(parents), parents, ["x"]))) == n
        return time.perf_counter() - start

    assert seconds(10_000) < 10  # growth is measured in benchmarks; this only catches a square


def test_what_is_left_out_takes_along_what_waits_for_nothing_else():
    scheduler = Scheduler(list("abcde"), {"a": [], "b": ["a"], "c": ["b"], "d": ["a", "c"], "e": ["c"]}, ["x", "y"])
    scheduler.finish(scheduler.take())
    assert scheduler.skip(scheduler.take()) == [Unit("x", "c"), Unit("x", "e")]
    assert scheduler.take() == Unit("x", "d")
    scheduler.finish(Unit("x", "d"))
    assert drain(scheduler) == ["y/a", "y/b", "y/c", "y/d", "y/e"]


def test_a_unit_of_a_node_that_has_failed_meanwhile_is_not_put_back():
    scheduler = Scheduler(["a"], {"a": []}, ["x"])
    scheduler.expand(scheduler.take(), 2)
    first, second = scheduler.take(), scheduler.take()
    scheduler.fail(first)
    scheduler.put_back(second)
    assert scheduler.finished
