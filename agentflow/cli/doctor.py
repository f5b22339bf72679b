"""`agentflow doctor`: what this machine offers, measured, and what to do about what is missing."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
from rich.table import Table

from agentflow import __version__
from agentflow.cli.console import out, plain, print_json
from agentflow.cli.options import json_option

PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "pydantic", "networkx", "rich")
DTYPES = ("float32", "bfloat16")


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Show versions, devices, the speed of each number format and thread count here, and the model cache."""
    found = examine()
    if as_json:
        print_json({**found, "advice": advice(found)})
        return 0
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        table.add_row(f"[dim]{name.replace('_', ' ')}[/]", plain(_shown(value)))
    out.print(table)
    for line in advice(found):
        out.print(f"[yellow]advice[/] {plain(line)}", soft_wrap=True)
    return 0


def examine() -> dict[str, Any]:
    """Everything there is to say, by name."""
    import torch

    from agentflow.folders import cache_root
    from agentflow.models.loading import choose_device, choose_dtype

    device = choose_device("auto")
    models = cache_root() / "models"
    ready = sorted(p.name for p in models.iterdir() if (p / "config.json").is_file()) if models.is_dir() else []
    return {
        "agentflow": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": str(device),
        "dtype": str(choose_dtype("auto", device)).removeprefix("torch."),
        "gpus": torch.cuda.device_count(),
        "threads": torch.get_num_threads(),
        "matmul_gflops": [
            {"dtype": name, "threads": threads, "rate": round(speed(getattr(torch, name), threads, str(device)), 1)}
            for name in DTYPES
            for threads in _thread_counts(device.type)
        ],
        "converted_models": ready,
        "cache": str(cache_root()),
    }


def speed(dtype: Any, threads: int, device: str) -> float:
    """Measured GFLOP/s of a 1024-wide matrix product."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.ones(1024, 1024, dtype=dtype, device=device)
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            float((a @ a)[0, 0])  # reading a number back waits for the device
            best = min(best, time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return 2 * 1024**3 / best / 1e9


def advice(found: dict[str, Any]) -> list[str]:
    """What to change here, in words."""
    lines = []
    rates = {rate["threads"]: rate["rate"] for rate in found["matmul_gflops"] if rate["dtype"] == "float32"}
    fastest, chosen = max(rates, key=lambda threads: rates[threads]), found["threads"]
    if chosen in rates and rates[fastest] > 1.2 * rates[chosen]:
        lines.append(f"{fastest} threads are faster here than {chosen}: set OMP_NUM_THREADS={fastest}.")
    missing = [name for name, found_version in found["packages"].items() if found_version is None]
    if missing:
        lines.append(f"Packages are missing: {', '.join(missing)}. Install AgentFlow again.")
    if not found["converted_models"]:
        lines.append("No model is converted yet: `agentflow models show smollm2-135m --fetch` gets the embedded one.")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name} {version or 'missing'}" for name, version in value.items())
    if isinstance(value, list):
        return "\n".join(_rate(one) if isinstance(one, dict) else str(one) for one in value) or "none yet"
    return str(value)


def _rate(one: dict[str, Any]) -> str:
    return f"{one['dtype']}, {one['threads']} thread{'s' if one['threads'] > 1 else ''}: {one['rate']}"


def _thread_counts(device: str) -> list[int]:
    import torch

    return sorted({1, torch.get_num_threads()}) if device == "cpu" else [torch.get_num_threads()]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
