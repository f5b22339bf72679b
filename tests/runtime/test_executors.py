"""Threads that work is done on: waiting ends with the first that is done, and each is told once."""

from __future__ import annotations

import threading
import time

import pytest

from agentflow.runtime.executors.local import Detached, Ended, LocalExecutor


@pytest.fixture(params=["lane", "detached"])
def threads(request):
    """What has ended, and how work is begun."""
    ended = Ended()
    made = LocalExecutor(ended) if request.param == "lane" else Detached(ended)
    yield ended, (lambda work: made.submit(work, work)) if request.param == "lane" else made.submit
    made.shutdown() if request.param == "lane" else made.close()


def test_waiting_ends_with_the_first_and_tells_it_once(threads):
    ended, submit = threads
    gate = threading.Event()
    slow, quick = submit(lambda: gate.wait(30)), submit(lambda: 7)
    assert ended.wait(30) == {quick}
    assert quick.result() == 7
    assert ended.wait(0.01) == set()
    gate.set()
    assert ended.wait(30) == {slow}


def test_work_that_raises_has_ended_too(threads):
    ended, submit = threads
    future = submit(lambda: 1 // 0)
    assert ended.wait(30) == {future}
    with pytest.raises(ZeroDivisionError):
        future.result()


def test_waiting_for_nothing_ends_in_time():
    start = time.monotonic()
    assert Ended().wait(0.05) == set()
    assert time.monotonic() - start >= 0.04
