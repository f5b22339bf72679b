"""Where figures were measured, and how much memory an item took."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from agentflow.models.pool import Speaker
from agentflow.models.remote import RemoteModel

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def describe_machine(speakers: Sequence[Speaker]) -> dict[str, Any]:
    """Processor, devices, threads, versions and the models' fingerprints."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "python": platform.python_version(),
        "agentflow": version("agentflow-kv"),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "models": dict(map(_described, speakers)),
    }


def _described(speaker: Speaker) -> tuple[str, dict[str, str]]:
    if isinstance(speaker, RemoteModel):
        return speaker.spec.model, {"weights": speaker.mark[:16], "dtype": "–", "device": speaker.endpoint.url}
    loaded = speaker.loaded
    dtype = str(loaded.dtype).removeprefix("torch.")
    device = str(loaded.device)
    return loaded.spec.model, {"weights": speaker.fingerprint.weights[:16], "dtype": dtype, "device": device}


def reset_peak() -> None:
    """Forget the most memory that was held so far, where the system allows it."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


def peak_memory() -> int:
    """Most bytes held since `reset_peak`: on the GPU where there is one, else of the process; 0 if untold."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        line = next(row for row in _STATUS.read_text().splitlines() if row.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0
    return int(line.split()[1]) * 1024


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
