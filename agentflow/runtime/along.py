"""Reading along: while a sender speaks, models that will read the same conversation themselves do so, beside it.

Over `c2c` sender and receiver both read the conversation. Only the sender's answer has to be waited for in it, so
on two devices their prefills run side by side. What was read lies in the engine's prefix store, where receiving finds
it; nothing else is passed on, so a reading that came to nothing costs its time and no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial

from agentflow.channels.base import Channel
from agentflow.kv.payload import Turn
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.models.spec import ModelSpec
from agentflow.runtime.binding import Binding
from agentflow.runtime.executors.local import LocalExecutor
from agentflow.runtime.options import Overlap
from agentflow.runtime.scheduler import Unit

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Along:
    """The readings of a run that are under way."""

    binding: Binding
    engines: EnginePool
    executor: LocalExecutor
    how: Overlap
    _under_way: dict[str, list[Future[None]]] = field(default_factory=dict)

    def begin(self, sender: Engine, planned: Iterable[tuple[Unit, tuple[Turn, ...]]]) -> None:
        """Let the receivers of these units read what the units are asked; those models only that are loaded."""
        for unit, turns in planned:
            begun: set[ModelSpec] = set()
            for _, edge, channel in self.binding.outgoing(unit.node):
                if self.binding.is_called(edge.receiver) or self.binding.workflow.nodes[edge.receiver].when:
                    continue  # nothing is read for one that may not run at all
                spec = self.binding.model_of(edge.receiver)
                receiver = self.engines.loaded(spec)
                if receiver is None or spec in begun or not self._side_by_side(sender, receiver):
                    continue
                begun.add(spec)
                reading = partial(_read, channel, turns, sender, receiver)
                future = self.executor.submit(("ahead", spec), reading)
                self._under_way.setdefault(unit.item, []).append(future)

    def ended(self, items: Iterable[str]) -> None:
        """Wait until what these items' receivers read is read, so that none of it is computed twice."""
        wait([future for item in items for future in self._under_way.pop(item, ())])

    def _side_by_side(self, sender: Engine, receiver: Engine) -> bool:
        apart = receiver.loaded.device != sender.loaded.device
        return receiver is not sender and (self.how == "on" or (self.how == "auto" and apart))


def _read(channel: Channel, turns: tuple[Turn, ...], sender: Engine, receiver: Engine) -> None:
    try:
        channel.read_along(turns, sender.loaded.spec, receiver)
    except Exception:  # receiving will meet it again, where it can be told
        log.debug("reading along failed", exc_info=True)
