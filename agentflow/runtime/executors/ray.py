"""Models on a Ray cluster: an engine for each actor, several actors a model, caches in the object store.

The orchestrator, its lanes and its stores stay as they are, in this process; what is elsewhere are the engines. Needs
the extra `ray`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from agentflow.errors import ModelError
from agentflow.models.embedded import Progress, silent
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.models.spec import ModelSpec

if TYPE_CHECKING:
    from agentflow.runtime.executors.actors.crew import Crew

SHARE = 4
"""Caches that are known to lie in the object store may take one in so many of its bytes."""

ANSWER = 10.0
"""Seconds that a cluster may take to answer when it is called."""


class RayCluster:
    """A connection to a cluster, and the actors that were started on it.

    >>> with RayCluster() as cluster:
    ...     flow = agentflow.load_workflow("private_facts", engines=cluster.engines)

    Args:
        address: of a cluster, as Ray takes it: HOST:PORT, `auto`, `local` for one that is started here; by default
            that of RAY_ADDRESS, else what runs on this machine, else one is started. A connection that this process has
            already is used, and left open.
        progress: told about starting and loading.

    Raises:
        ModelError: Ray is not installed, the cluster can't be reached, or this process is connected to another one.
    """

    def __init__(self, address: str | None = None, *, progress: Progress = silent) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        try:
            import ray
        except ImportError:
            raise ModelError(
                "The executor 'ray' needs the package Ray.", fix="Install it: pip install 'agentflow-kv[ray]'."
            ) from None
        self._ray, self._progress = ray, progress
        self._is_ours = not ray.is_initialized()
        if address is not None and not self._is_ours:
            raise ModelError("This program is connected to a Ray cluster already.", where=address, fix="Leave it out.")
        if self._is_ours:
            self._connect(address or os.environ.get("RAY_ADDRESS") or None)
        self.engines = EnginePool(factory=self.engine)
        self._crews: list[Crew] = []
        self._lock = threading.Lock()

    def _connect(self, address: str | None) -> None:
        if address is not None and address.startswith("ray://"):
            raise ModelError(
                "A Ray client can't share memory with the cluster, which is what caches travel through.",
                where=address,
                fix="Run this on a node of the cluster, with its address as HOST:PORT or 'auto'.",
            )
        if address not in {None, "auto", "local"}:
            _require_answer(str(address))
        try:
            self._ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
        except Exception as error:  # noqa: BLE001 - Ray raises plain ones too
            reason = str(error).strip().splitlines()[0]
            if address in {None, "local"}:
                raise ModelError(f"Ray can't be started: {reason}") from None
            fix = "If it lets only those in who have its token, set RAY_AUTH_MODE=token; it is in ~/.ray/auth_token."
            raise ModelError(f"The Ray cluster can't be reached: {reason}.", where=address, fix=fix) from None

    def engine(self, spec: ModelSpec) -> Engine:
        """Start the actors of a model; the engine that asks them.

        Raises:
            UserError: the cluster can't hold them, or they can't load the model.
        """
        from agentflow.runtime.executors.actors.crew import Crew
        from agentflow.runtime.executors.actors.engine import ActorEngine
        from agentflow.runtime.executors.actors.room import require_room, store_bytes, take_of
        from agentflow.runtime.executors.actors.shelf import Shelf

        with self._lock:
            take = take_of(spec)
            require_room(spec, take, [(len(crew.members), crew.take) for crew in self._crews])
            crew = Crew(spec, take, self._progress)
            self._crews.append(crew)
        return ActorEngine(spec, crew, Shelf(store_bytes() // SHARE))

    def close(self) -> None:
        """End the actors, and the connection where it is ours; a cluster that was started ends with it."""
        if not self._ray.is_initialized():
            return
        for crew in self._crews:
            crew.close()
        self._crews = []
        if self._is_ours:
            self._ray.shutdown()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _require_answer(address: str) -> None:
    """Refuse an address that nobody listens at: Ray itself would go on asking for many minutes."""
    fix = "Name its head as HOST:PORT, as `ray start --head` prints it, in RAY_ADDRESS."
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ModelError("This is no address of a Ray cluster.", where=address, fix=fix)
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ModelError(f"The Ray cluster can't be reached: {error}.", where=address, fix=fix) from None
