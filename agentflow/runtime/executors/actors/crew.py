"""The actors of one model: who is there, who gets what, and what happens when one is lost.

One that dies is replaced by a new one, on another node where its own is gone. What it was asked is asked again of
whoever is there: requests and the caches they stand on belong to this process, so nothing that they need is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray import exceptions

from agentflow.errors import ModelError, UserError
from agentflow.folders import CACHE_VARIABLE
from agentflow.models.embedded import Progress, silent
from agentflow.models.spec import ModelSpec
from agentflow.runtime.executors.actors.actor import Description, ModelActor
from agentflow.runtime.executors.actors.room import Take, has_room

LOST = (
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
    exceptions.NodeDiedError,
)
LIVES = 3
"""How often an actor may die before it has loaded its model, and how often what is asked may be lost."""
PATIENCE = 300.0
"""Seconds to wait for a place for an actor where all have been lost."""
MOVING = 0.1
"""What moving a position of a cache to another node costs, in tokens prefilled."""
THREADS = 8
"""Calls of one actor that may be under way; one engine's forward passes take turns all the same."""


@dataclass(eq=False)
class Member:
    """An actor.

    Attributes:
        placed: the call that tells its node, once it has one.
        loading: the call that tells when its model is there; None from then on.
        deaths: of those before it that had never loaded their model.
        load: the work that it has been given, in tokens prefilled.
    """

    handle: Any
    placed: Any
    loading: Any
    deaths: int = 0
    node: str = ""
    load: float = 0.0


class Crew:
    """The actors of a model; made when all of them have loaded it.

    Args:
        spec: its `actors` say how many there are.
        take: what each of them takes of the cluster.

    Raises:
        UserError: they can't load the model, or have not the same weights.
    """

    def __init__(self, spec: ModelSpec, take: Take, progress: Progress = silent) -> None:
        self.spec, self.take, self.lost = spec, take, 0
        self._lock = threading.Lock()
        self._seen: Description | None = None
        self._actor = ray.remote(ModelActor).options(
            num_cpus=take.cpus, num_gpus=take.gpus, max_concurrency=THREADS, scheduling_strategy="SPREAD"
        )
        self.members = [self._started() for _ in range(spec.actors.count)]
        try:
            self._gather(progress)
        except BaseException:
            self.close()
            raise

    @property
    def seen(self) -> Description:
        """What the model is."""
        assert self._seen is not None
        return self._seen

    def begin(
        self,
        weight: float,
        near: Collection[str] = (),
        moved: float = 0.0,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Member | None:
        """The actor that gets the next piece of work: the least busy one, on a node that is `near` where that pays.

        Args:
            weight: of the work, in tokens prefilled.
            near: nodes that have what it needs; none where that makes no difference.
            moved: what it costs to move that elsewhere, in tokens prefilled.
            is_wanted: asked while there is nobody; None is returned where it no longer is.

        Raises:
            ModelError: all actors are lost, and none can be started.
        """
        end = time.monotonic() + PATIENCE
        while True:
            with self._lock:
                there = [member for member in self.members if self._is_there(member)]
                if there:
                    far = {id(m): moved if near and m.node not in near else 0.0 for m in there}
                    best = min(there, key=lambda m: m.load + far[id(m)])
                    best.load += weight
                    return best
                waiting = [member for member in self.members if member.deaths < LIVES]
            if not is_wanted():
                return None
            if not waiting:
                raise ModelError(f"All actors of '{self.spec.model}' have died, and so did those after them.")
            if any(_is_done(member.placed) for member in waiting):
                end = time.monotonic() + PATIENCE  # a model is being loaded, which takes as long as it takes
            elif time.monotonic() > end:
                room = "others have it" if has_room(self.take) else "no node has it"
                raise ModelError(
                    f"All actors of '{self.spec.model}' are lost, and there is no place for a new one: it takes "
                    f"{self.take}, and {room}.",
                    fix="Go on with the run when the cluster has more.",
                )
            ray.wait([member.loading for member in waiting], timeout=0.5)

    def end(self, member: Member, weight: float) -> None:
        """Work has ended, well or not."""
        with self._lock:
            member.load -= weight

    def missed(self, member: Member, error: Exception) -> None:
        """An actor did not answer: it gets no work before it does, and is replaced where it has died."""
        with self._lock:
            self.lost += 1
            if member not in self.members or member.loading is not None:
                return  # somebody else has told
            if isinstance(error, exceptions.ActorUnavailableError):
                member.loading = self._load(member.handle)
            else:
                self._replace(member, deaths=0)

    def close(self) -> None:
        """End all actors."""
        for member in self.members:
            ray.kill(member.handle)

    # -- inside -----------------------------------------------------------------------------------------

    def _gather(self, progress: Progress) -> None:
        """Wait until every actor has loaded the model; however long it takes for one to be placed."""
        start, name, count = time.monotonic(), self.spec.model, len(self.members)
        while missing := [member for member in self.members if not self._has_loaded(member)]:
            unplaced = sum(not _is_done(member.placed) for member in missing)
            text = f"loading {name} on {'a Ray actor' if count == 1 else f'{count} Ray actors'}"
            if unplaced and time.monotonic() - start > 5 and not self.take.fits(ray.available_resources()):
                text = f"waiting for {self.take} to start {name}: others have what the cluster has"
            progress(text, None)
            ray.wait([member.loading for member in missing], timeout=1.0)

    def _has_loaded(self, member: Member) -> bool:
        """Whether an actor has loaded its model; one that has died is replaced.

        Raises:
            UserError: it can't, or its weights are others; or one after another has died.
        """
        if member.loading is None:
            return True
        if not _is_done(member.loading):
            return False
        try:
            seen: Description = result_of(member.loading)
        except exceptions.ActorUnavailableError:
            member.loading = self._load(member.handle)
            return False
        except LOST as error:
            if member.deaths + 1 < LIVES:
                self._replace(member, member.deaths + 1)
                return False
            raise ModelError(
                f"{LIVES} actors of '{self.spec.model}' died one after the other, before it was loaded: "
                f"{reason_of(error)}",
                fix="Is AgentFlow installed on every node, and is there memory enough for the weights?",
            ) from None
        self._seen = self._seen or seen
        if (seen.fingerprint, seen.dtype) != (self._seen.fingerprint, self._seen.dtype):
            raise ModelError(
                f"The nodes of the cluster have different weights for '{self.spec.model}'.",
                fix="Give every node the same: a folder that all of them see, or a hub id with a `revision`.",
            )
        member.node, member.loading, member.deaths = seen.node, None, 0
        return True

    def _is_there(self, member: Member) -> bool:
        """The same for one of several: where it can't be used any more, it is left out."""
        if member.deaths >= LIVES:
            return False
        try:
            return self._has_loaded(member)
        except UserError:
            member.deaths = LIVES
            return False

    def _replace(self, member: Member, deaths: int) -> None:
        ray.kill(member.handle)
        self.members[self.members.index(member)] = self._started(deaths)

    def _started(self, deaths: int = 0) -> Member:
        handle = self._actor.remote()
        return Member(handle, handle.place.remote(), self._load(handle), deaths)

    def _load(self, handle: Any) -> Any:
        spec = self.spec
        if not self.take.gpus and spec.device == "auto":  # Ray does not hide GPUs from who takes none
            spec = spec.model_copy(update={"device": "cpu"})
        fields, threads = spec.model_dump(exclude_unset=True), max(1, int(self.take.cpus))
        return handle.load.remote(fields, threads, os.environ.get(CACHE_VARIABLE))


def result_of(ref: Any) -> Any:
    """The result of a call, or what a user can mend of its error.

    Raises:
        UserError: as it was raised in the actor.
    """
    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except (exceptions.RaySystemError, exceptions.LocalRayletDiedError) as error:
        raise ModelError(
            f"The connection to the Ray cluster is lost: {reason_of(error)}",
            fix="What was finished is stored: go on with the run when the cluster is there again.",
        ) from None


def reason_of(error: Exception) -> str:
    """The last thing that Ray says of why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _is_done(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])
