"""What `compare` adds to the engine's own time: everything it asked of the engine, asked again directly.

Pair by pair: the comparison runs two items over all arms, then the same requests and scorings are put to the engine
bare, in the same order. The report at the end (a second or two for any number of items) is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.controls import CONTROLS
from agentflow.evaluation.inputs import task_of
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.workflow.loader import load_workflow
from benchmarks.common import arguments, engine, report


def main() -> None:
    """Measure and report."""
    chosen = arguments(__doc__ or "")
    ours = engine(chosen.model)
    pool = EnginePool(factory=lambda spec: ours)
    workflow = load_workflow("private_facts")
    task = task_of(workflow)
    items = task.items(data=None, limit=2 if chosen.quick else 10, seed=0)
    recorder = Recorder(ours)
    seconds: dict[str, list[float]] = {"compare": [], "bare engine": []}
    for first in range(0, len(items), 2):
        pair = items[first : first + 2]  # each is the other's mismatched message
        options = CompareOptions(controls=tuple(CONTROLS))
        recorder.calls.clear()
        recorder.on = True
        start = time.perf_counter()
        compare(workflow, task, pair, ["text", "cache"], pool, options=options)
        seconds["compare"].append(time.perf_counter() - start)
        recorder.on = False
        start = time.perf_counter()
        for call in recorder.calls:
            call()
        seconds["bare engine"].append(time.perf_counter() - start)
    figures = {"overhead_over_engine": sum(seconds["compare"]) / sum(seconds["bare engine"]) - 1.0}
    report("What compare adds", seconds, figures, items=len(items), model=chosen.model)


class Recorder:
    """Keeps what is asked of an engine, so that it can be asked again."""

    def __init__(self, ours: Engine) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.on = False
        for name in ("generate", "score"):
            setattr(ours, name, self._kept(getattr(ours, name)))

    def _kept(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                self.calls.append(lambda: method(*args, **kwargs))
            return method(*args, **kwargs)

        return asked


if __name__ == "__main__":
    main()
