"""Which models may work now, where no more than so many of one device may at the same time."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from agentflow.models.loading import choose_device
from agentflow.models.spec import ModelSpec


class Places:
    """The places that models have at their devices.

    Args:
        most: models of one device that may be at work at the same time; None for any number.

    Raises:
        ModelError: a model names a device that is not there.
    """

    def __init__(self, models: Iterable[ModelSpec], most: int | None) -> None:
        self._most = most
        self._devices = {spec: devices_of(spec) for spec in models} if most is not None else {}

    def has_room(self, spec: ModelSpec, busy: Iterable[ModelSpec]) -> bool:
        """Whether a model may begin beside those that are at work."""
        if self._most is None:
            return True
        beside = [self._devices[other] for other in busy]
        return all(sum(device in others for others in beside) < self._most for device in self._devices[spec])


def devices_of(spec: ModelSpec) -> frozenset[str]:
    """The devices on which a model works; one that accelerate spreads takes all there are of its kind.

    Raises:
        ModelError: there is no such device.
    """
    device = choose_device(spec.device)
    if device.type != "cuda":
        return frozenset([device.type])
    if spec.device_map:
        return frozenset(f"cuda:{n}" for n in range(torch.cuda.device_count()))
    return frozenset([f"cuda:{device.index or 0}"])
