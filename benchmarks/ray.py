"""What a Ray cluster on one machine gives and costs: two actors beside one, and a payload through the object store.

`python -m benchmarks.ray [--quick]`; the last line is JSON: {two_actors_speedup, payload_over_memcpy}. Actors have one
thread each; the same workers stand on one prefix. The payload is a cache of 150 MB: put, got by another process, and
one number of each of its memory pages read there, over a copy of the same tensors into memory that is there already.
`two_actors_cpu` is what the speed-up would be if nobody else wanted the cores: processor time of the one actor over
that of the busier of the two.
"""

from __future__ import annotations

from typing import Any

import psutil
import ray
import torch

from agentflow.kv.cache import KVCache
from agentflow.models.requests import Request
from agentflow.models.spec import resolve_model
from agentflow.runtime.executors.actors.engine import ActorEngine
from agentflow.runtime.executors.actors.views import Shipped
from agentflow.runtime.executors.ray import RayCluster
from benchmarks.common import arguments, interleaved, paired, ratio, report

PREFIX, PROMPT, NEW, WORKERS = 256, 64, 8, 24
MEGABYTES = 150
PAGE = 1024
"""Numbers of four bytes on a page of memory."""


def main() -> None:
    """Measure both."""
    asked = arguments(__doc__.splitlines()[0])
    repetitions = 2 if asked.quick else 9
    # More CPUs than there are, so that three actors have a place; no more than two are at work.
    ray.init("local", num_cpus=4, object_store_memory=1 << 30, include_dashboard=False, log_to_driver=False)
    try:
        with RayCluster() as cluster:
            crossing = payload(5 * repetitions)
            one, two = crew(cluster, asked.model, 1), crew(cluster, asked.model, 2)
            seconds = interleaved(repetitions, {"one actor": one, "two actors": two})
    finally:
        ray.shutdown()
    figures = {
        "two_actors_speedup": paired(seconds["one actor"], seconds["two actors"]),
        "payload_over_memcpy": ratio(crossing["payload"], crossing["copy"]),
    }
    notes = {
        "two_actors_cpu": round(ratio(one.busiest[1:], two.busiest[1:]), 3),
        "payload_over_new_copy": round(ratio(crossing["payload"], crossing["new copy"]), 3),
        "ray": ray.__version__,
    }
    report(f"Ray: {WORKERS} workers on {PREFIX} tokens, {MEGABYTES} MB", {**crossing, **seconds}, figures, **notes)


class Fanout:
    """The same workers every time; notes the processor time of the busiest actor."""

    def __init__(self, engine: ActorEngine) -> None:
        self._engine = engine
        prefix = engine.prefill(tokens(PREFIX, 0))
        self._requests = [Request(tokens(PROMPT, 1 + n), prefix, max_new_tokens=NEW) for n in range(WORKERS)]
        handles = [member.handle for member in engine.crew.members]
        self._processes = [psutil.Process(pid) for pid in ray.get([handle.process.remote() for handle in handles])]
        self.busiest: list[float] = []

    def __call__(self) -> None:
        """Have all workers answered."""
        before = self._used()
        self._engine.generate(self._requests)
        self.busiest.append(max(after - since for since, after in zip(before, self._used(), strict=True)))

    def _used(self) -> list[float]:
        times = [process.cpu_times() for process in self._processes]
        return [found.user + found.system for found in times]


def crew(cluster: RayCluster, model: str, count: int) -> Fanout:
    """`count` actors of one thread each, and the workers they answer."""
    engine = cluster.engine(resolve_model({"use": model, "actors": {"count": count, "cpus": 1}}))
    assert isinstance(engine, ActorEngine)
    return Fanout(engine)


def payload(repetitions: int) -> dict[str, list[float]]:
    """Seconds of a cache through the object store, and of its copy into memory that is there, and that is not."""
    layers, heads, width = 30, 3, 64
    length = (MEGABYTES << 20) // (layers * 2 * heads * width * 4)
    keys, values = ([torch.randn(heads, length, width) for _ in range(layers)] for _ in range(2))
    cache = KVCache.stacked(keys, values)
    tensors = (*cache.keys, *cache.values)
    room = [torch.zeros_like(tensor) for tensor in tensors]
    reader = ray.remote(Reader).remote()
    ways: dict[str, Any] = {
        "payload": lambda: ray.get(reader.use.remote(ray.put(Shipped.of(cache)))),
        "copy": lambda: [there.copy_(tensor) for there, tensor in zip(room, tensors, strict=True)],
        "new copy": lambda: [tensor.clone() for tensor in tensors],
    }
    return interleaved(repetitions, ways, warm=10)  # all of the store has been written to


class Reader:
    """Another process."""

    def use(self, shipped: Shipped) -> float:
        """Read one number of each memory page."""
        cache = shipped.cache()
        return sum(float(tensor.view(-1)[::PAGE].sum()) for tensor in (*cache.keys, *cache.values))


def tokens(count: int, seed: int) -> tuple[int, ...]:
    """Random ones."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(100, 20_000, (count,), generator=generator).tolist())


if __name__ == "__main__":
    main()
