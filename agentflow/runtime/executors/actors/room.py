"""What the nodes of a cluster have, and whether a model's actors can ever stand there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray

from agentflow.errors import ModelError
from agentflow.models.spec import ModelSpec


@dataclass(frozen=True)
class Take:
    """What each of a model's actors takes."""

    cpus: float
    gpus: float

    def fits(self, node: Mapping[str, float]) -> int:
        """How many of them a node's resources are enough for."""
        parts = [(self.cpus, "CPU"), (self.gpus, "GPU")]
        return min((int(node.get(name, 0) / part) for part, name in parts if part), default=1 << 20)

    def __str__(self) -> str:
        cpus, gpus = (f"{n:g} {name}{'' if n == 1 else 's'}" for n, name in ((self.cpus, "CPU"), (self.gpus, "GPU")))
        return f"{cpus} and {gpus}" if self.gpus else cpus


def take_of(spec: ModelSpec) -> Take:
    """What an actor of `spec` takes: a GPU where there are some and nothing is said of them, nor of the device."""
    gpus = spec.actors.gpus
    if gpus is None:
        gpus = float(spec.device.startswith("cuda") or (spec.device == "auto" and any("GPU" in n for n in nodes())))
    return Take(spec.actors.cpus, gpus)


def nodes() -> list[Mapping[str, float]]:
    """The resources of every node that is alive, whoever has them."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def store_bytes() -> int:
    """What the object store of this program's node holds."""
    here = ray.get_runtime_context().get_node_id()
    return int(next(node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here))


def has_room(take: Take) -> bool:
    """Whether some node could hold one actor, were nobody else there."""
    return any(take.fits(node) for node in nodes())


def require_room(spec: ModelSpec, take: Take, others: Sequence[tuple[int, Take]]) -> None:
    """Refuse what the cluster can't hold even when nobody else is there.

    Args:
        others: how many actors this program has there already, and what each of them takes.

    Raises:
        ModelError: too many of them, too large, or too many beside those of other models.
    """
    there, count = nodes(), spec.actors.count
    have = Take(sum(node.get("CPU", 0) for node in there), sum(node.get("GPU", 0) for node in there))
    all_of_us = [*others, (count, take)]
    need = Take(sum(n * t.cpus for n, t in all_of_us), sum(n * t.gpus for n, t in all_of_us))
    fits_alone = sum(take.fits(node) for node in there) >= count
    if fits_alone and need.cpus <= have.cpus and need.gpus <= have.gpus:
        return
    beside = " beside those of this workflow's other models" if fits_alone else ""
    what = f"{count} actors of '{spec.model}', {take} each," if count > 1 else f"An actor of '{spec.model}' with {take}"
    raise ModelError(
        f"{what} can't be placed{beside}: {_told(there)}.",
        fix="Ask for less under `actors` of the model, or add nodes to the cluster.",
    )


def _told(there: Sequence[Mapping[str, float]]) -> str:
    each = [Take(node.get("CPU", 0), node.get("GPU", 0)) for node in there]
    if len(each) == 1:
        return f"the cluster has {each[0]}"
    more = ", …" if len(each) > 8 else ""
    return f"the cluster has {len(each)} nodes with {'; '.join(map(str, each[:8]))}{more}"
