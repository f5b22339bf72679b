"""Runs batches on threads of this process: one lane for each engine, so that several models work side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class LocalExecutor:
    """One thread per lane; work of one lane is done in the order it is submitted."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    def submit(self, lane: Hashable, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the lane's thread; work of one lane may submit to another, made later than its own."""
        with self._lock:
            if lane not in self._lanes:
                self._lanes[lane] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentflow")
        return self._lanes[lane].submit(work)

    def shutdown(self) -> None:
        """Let running work end and take no more, the oldest lane first."""
        for lane in list(self._lanes.values()):
            lane.shutdown(wait=True, cancel_futures=True)


def detached(work: Callable[[], T]) -> Future[T]:
    """Run `work` on a thread of its own that nobody has to wait for, not even the end of the program."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="agentflow-tool", daemon=True).start()
    return future
