"""Runs work on threads of this process: one lane for each engine, so that several models work side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Ended:
    """Futures that have ended, each told once; waiting costs the same however many are under way."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Future[Any]] = SimpleQueue()

    def watch(self, future: Future[T]) -> Future[T]:
        """Tell of this one, too."""
        future.add_done_callback(self._queue.put)
        return future

    def wait(self, timeout: float) -> set[Future[Any]]:
        """Those that have ended since this was last asked; waits at most `timeout` seconds for the first."""
        found: set[Future[Any]] = set()
        try:
            found.add(self._queue.get(timeout=timeout))
            while True:
                found.add(self._queue.get_nowait())
        except Empty:
            return found


class LocalExecutor:
    """One thread per lane; work of one lane is done in the order it is submitted.

    Args:
        ended: is told of all work.
    """

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._lanes: dict[Hashable, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    def submit(self, lane: Hashable, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the lane's thread; work of one lane may submit to another, made later than its own."""
        with self._lock:
            if lane not in self._lanes:
                self._lanes[lane] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentflow")
        return self._ended.watch(self._lanes[lane].submit(work))

    def shutdown(self) -> None:
        """Let running work end and take no more, the oldest lane first."""
        for lane in list(self._lanes.values()):
            lane.shutdown(wait=True, cancel_futures=True)


class Detached:
    """Threads that nobody has to wait for, not even the end of the program.

    One that is free takes the next work, since starting one costs more than most tools; one that hangs is replaced.

    Args:
        ended: is told of all work.
    """

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._free = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` at once."""
        future = self._ended.watch(Future[T]())
        with self._lock:
            self._work.put((future, work))
            if self._free:
                self._free -= 1
                return future
            self._threads += 1
        threading.Thread(target=self._run, name="agentflow-tool", daemon=True).start()
        return future

    def close(self) -> None:
        """Let every thread end once its work has."""
        with self._lock:
            for _ in range(self._threads):
                self._work.put(None)

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            future, work = job
            try:
                told = partial(future.set_result, work())
            except BaseException as error:  # noqa: BLE001 - it is raised again where the result is asked for
                told = partial(future.set_exception, error)
            with self._lock:
                self._free += 1  # before anybody hears of the result, and has the next work
            told()
