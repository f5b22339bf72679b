"""Work in another process that is killed once it has kept something."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def killed_after(kept: Path, work: Callable[..., None], *arguments: object) -> None:
    """Begin `work`, and kill its process as soon as `kept` is there."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    until = time.monotonic() + 240
    while not kept.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
