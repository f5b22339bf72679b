"""A store used by many at once: threads of one process, and processes on one folder."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
from collections import Counter
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import PayloadError
from agentflow.kv.payload import Payload
from agentflow.kv.store import PayloadStore
from agentflow.kv.wire import payload_digest
from tests.kv.samples import payload_of, random_cache, same_payload

SPAWN = multiprocessing.get_context("spawn")


def sample(seed: int, n: int = 20) -> Payload:
    return payload_of(random_cache(n, seed=seed))


SIZE = sample(0).nbytes


@cache
def digest_of(seed: int) -> str:
    return payload_digest(sample(seed))


def check(store: PayloadStore, digest: str, seed: int) -> None:
    assert same_payload(store.get(digest), sample(seed))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "retain", "get", "free", "persist"]), st.integers(0, 4)), max_size=40
    ),
    budget=st.integers(0, 5),
)
def test_any_sequence_of_operations_agrees_with_a_counter(
    steps: list[tuple[str, int]], budget: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model: Counter[int] = Counter()
    root = tmp_path_factory.mktemp("store")
    with PayloadStore(root, memory_bytes=budget * SIZE) as store:
        for what, seed in steps:
            digest = digest_of(seed)
            if what == "put":
                assert store.put(sample(seed)) == digest
                model[seed] += 1
            elif not model[seed]:
                try:
                    getattr(store, what)(digest)
                except PayloadError:
                    continue
                raise AssertionError(f"{what} of a payload that is not held")
            elif what == "get":
                check(store, digest, seed)
            else:
                getattr(store, what)(digest)
                model[seed] += {"retain": 1, "free": -1, "persist": 0}[what]
            usage = store.usage()
            assert usage.payloads == sum(n > 0 for n in model.values())
            assert usage.memory_bytes <= min(budget, usage.payloads) * SIZE
        for seed, count in model.items():
            for _ in range(count):
                check(store, digest_of(seed), seed)
                store.free(digest_of(seed))
        assert store.usage().memory_bytes == 0
        assert not list(root.rglob("*.safetensors"))


def hammer(store: PayloadStore, seed: int, steps: int) -> None:
    """Random operations within one's own references; every payload that comes back is checked."""
    draw = random.Random(seed)
    held: Counter[int] = Counter()
    for _ in range(steps):
        what, which = draw.choice(["put", "put", "get", "get", "free", "retain", "persist"]), draw.randrange(12)
        if what == "put":
            assert store.put(sample(which)) == digest_of(which)
            held[which] += 1
        elif held[which]:
            if what == "get":
                check(store, digest_of(which), which)
            else:
                getattr(store, what)(digest_of(which))
                held[which] += {"free": -1, "retain": 1, "persist": 0}[what]
    for which, count in held.items():
        for _ in range(count):
            store.free(digest_of(which))


def test_threads_that_hammer_one_store_always_get_what_they_put(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    with PayloadStore(tmp_path, memory_bytes=3 * SIZE) as store:

        def run(seed: int) -> None:
            try:
                hammer(store, seed, 400)
            except BaseException as error:  # noqa: BLE001 - any failure is reported by the main thread
                failures.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        usage = store.usage()
        assert (usage.payloads, usage.memory_bytes, usage.disk_bytes) == (0, 0, 0)


def hammer_process(root: Path, seed: int, steps: int, together: Barrier) -> None:
    """Own references, and adopting whatever the other process has on disk."""
    draw = random.Random(seed)
    with PayloadStore(root, memory_bytes=2 * SIZE) as store:
        together.wait()
        adopted = 0
        for step in range(steps):
            which = draw.randrange(12)
            try:
                store.retain(digest_of(which))
            except PayloadError:
                store.put(sample(which))
                if draw.random() < 0.7:
                    store.persist(digest_of(which))
            else:
                adopted += 1
            check(store, digest_of(which), which)
            if step % 20 == 0:
                gc.collect()
            if draw.random() < 0.8:
                store.free(digest_of(which))
        together.wait()  # what is held still can be adopted by the slower one
        assert adopted > 0


def test_two_processes_on_one_folder_always_get_whole_payloads(tmp_path: Path) -> None:
    together = SPAWN.Barrier(2)
    workers = [SPAWN.Process(target=hammer_process, args=(tmp_path, seed, 150, together)) for seed in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0]
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list(tmp_path.glob("holder-*"))


def fill(root: Path, seeds: list[int], budget: int, results: Connection) -> None:
    """Put until the disk budget is used up; tells what was kept."""
    kept = 0
    store = PayloadStore(root, memory_bytes=0, disk_bytes=budget)
    results.send("ready")
    results.recv()
    for seed in seeds:
        try:
            store.put(sample(seed))
            kept += 1
        except PayloadError as error:
            assert "store is full" in str(error)  # noqa: PT017
    results.send(kept)
    results.recv()
    store.close()


def test_two_processes_never_exceed_the_disk_budget_together(tmp_path: Path) -> None:
    with PayloadStore(tmp_path / "one", memory_bytes=0) as store:
        store.put(sample(0))
        one = store.usage().disk_bytes
    root, budget = tmp_path / "both", 5 * one
    ends = [SPAWN.Pipe() for _ in range(2)]
    seeds = (list(range(8)), list(range(8, 16)))
    workers = [SPAWN.Process(target=fill, args=(root, s, budget, end[1])) for s, end in zip(seeds, ends, strict=True)]
    for worker in workers:
        worker.start()
    for ours, _ in ends:
        assert ours.recv() == "ready"
    for ours, _ in ends:
        ours.send("go")
    kept = sum(ours.recv() for ours, _ in ends)
    size = sum(p.stat().st_size for p in root.rglob("*.safetensors"))
    for ours, _ in ends:
        ours.send("done")
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0]
    assert kept == 5
    assert size <= budget


def hold(root: Path, results: Connection) -> None:
    store = PayloadStore(root, memory_bytes=0)
    results.send(store.put(sample(0)))
    results.recv()


def test_a_killed_process_leaves_what_others_hold_and_is_cleared_at_the_next_opening(tmp_path: Path) -> None:
    ours, theirs = SPAWN.Pipe()
    victim = SPAWN.Process(target=hold, args=(tmp_path, theirs))
    victim.start()
    digest = ours.recv()
    with PayloadStore(tmp_path) as store:
        assert len(list(tmp_path.glob("holder-*"))) == 2  # it is alive
        store.retain(digest)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        assert len(list(tmp_path.glob("holder-*"))) == 2
        with PayloadStore(tmp_path):
            assert len(list(tmp_path.glob(f"holder-{victim.pid}-*"))) == 0
            check(store, digest, 0)
        store.free(digest)
        assert not list(tmp_path.rglob("*.safetensors"))
