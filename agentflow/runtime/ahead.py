"""Turns prepared ahead: while a model decodes one batch, what is sent to its next units is delivered on another thread.

Batches are formed as they would be without: only the preparation of a turn is moved forward. On CUDA the thread
launches into the same stream as decoding does, so the device's memory needs no further care; what can be gained is the
host's time, and the device's idle time between two steps. On a CPU both threads want the same cores: with no core to
spare, twelve briefings of SmolLM2-135M took 1.03 to 1.04 times as long as one after the other, so `auto` leaves it off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice

from agentflow.models.engine import Engine
from agentflow.models.spec import ModelSpec
from agentflow.runtime.executors.local import LocalExecutor
from agentflow.runtime.options import Overlap
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.runtime.turns import Prepared

Ready = tuple[Unit, ItemState]
Prepare = Callable[[Engine, Unit, ItemState], Prepared]


class Ahead:
    """The prepared turns of units that wait for their model.

    All units of a model that overlaps are prepared on one thread beside its own, so what several of them share is
    made once.

    Args:
        most: how many of the next turns of a model are looked at. What was prepared waits longer where earlier units
            become ready meanwhile, so somewhat more may be held.
    """

    def __init__(self, prepare: Prepare, executor: LocalExecutor, how: Overlap, most: int) -> None:
        self._prepare, self._executor, self._how, self._most = prepare, executor, how, most
        self._made: dict[Unit, tuple[ModelSpec, Future[Prepared]]] = {}

    def overlaps(self, engine: Engine) -> bool:
        """Whether turns of this engine are prepared ahead; `auto` says so where a device computes beside the host."""
        return self._how == "on" or (self._how == "auto" and engine.loaded.device.type == "cuda")

    def fill(self, spec: ModelSpec, engine: Engine, waiting: Iterable[Ready]) -> None:
        """Start on the first of the next `most` units that has not been begun, unless one is on its way."""
        mine = [future for owner, future in list(self._made.values()) if owner == spec]
        if not all(future.done() for future in mine) or not self.overlaps(engine):
            return
        for unit, state in islice(waiting, self._most):
            if unit not in self._made:
                self._made[unit] = spec, self._begin(spec, engine, unit, state)
                return

    def prepared(self, spec: ModelSpec, engine: Engine, units: Iterable[Ready]) -> list[Prepared]:
        """The turns of a batch: those that are there, and the others now."""
        if not self.overlaps(engine):
            return [self._prepare(engine, unit, state) for unit, state in units]
        found = [(self._made.pop(unit, None), unit, state) for unit, state in units]
        futures = [known[1] if known else self._begin(spec, engine, unit, state) for known, unit, state in found]
        return [future.result() for future in futures]

    def forget(self, item: str, node: str) -> None:
        """Drop what was prepared for a node that is done, or that will never run."""
        for unit in list(self._made):
            if (unit.item, unit.node) == (item, node):
                self._made.pop(unit, None)

    def _begin(self, spec: ModelSpec, engine: Engine, unit: Unit, state: ItemState) -> Future[Prepared]:
        return self._executor.submit(("ahead", spec), lambda: self._prepare(engine, unit, state))
