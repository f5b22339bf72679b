"""What all tests need of the process they run in."""

from __future__ import annotations

import signal

from tests.clusters import cluster

__all__ = ["cluster"]


def pytest_configure() -> None:
    """Let Ctrl-C reach Python: a shell that starts a command in the background has it ignored, in its children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
