"""`agentflow doctor`: what this machine offers, measured, and what to do about what is missing."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from agentflow.cli.console import out, print_json

PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "pydantic", "networkx", "rich")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True)
def command(as_json: bool) -> int:
    """Show versions, devices, the speed of each number format and thread count here, and the model cache."""
    import torch

    from agentflow.models.embedded import cache_root
    from agentflow.models.loading import choose_device, choose_dtype

    device = choose_device("auto")
    models = cache_root() / "models"
    ready = sorted(p.name for p in models.iterdir() if (p / "config.json").is_file()) if models.is_dir() else []
    found: dict[str, Any] = {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "device": str(device),
        "dtype chosen": str(choose_dtype("auto", device)).removeprefix("torch."),
        "GPUs": torch.cuda.device_count(),
        "threads": torch.get_num_threads(),
        "matmul GFLOP/s": {
            f"{name}, {threads} threads": round(speed(getattr(torch, name), threads, str(device)), 1)
            for name in ("float32", "bfloat16")
            for threads in _thread_counts(device.type)
        },
        "converted models": ready,
        "cache": str(cache_root()),
    }
    if as_json:
        print_json(found)
        return 0
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        shown = "\n".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        shown = ", ".join(value) or "none yet" if isinstance(value, list) else shown
        table.add_row(f"[dim]{name}[/]", escape(str(shown)))
    out.print(table)
    for line in advice(found):
        out.print(f"[yellow]advice[/] {escape(line)}")
    return 0


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
    lines, rates = [], found["matmul GFLOP/s"]
    floats = {key: rate for key, rate in rates.items() if key.startswith("float32")}
    fastest = max(floats, key=lambda key: floats[key])
    wanted = f"float32, {found['threads']} threads"
    if wanted in floats and floats[fastest] > 1.2 * floats[wanted]:
        lines.append(f"{fastest} is faster here than {wanted}: set OMP_NUM_THREADS={fastest.split()[1]}.")
    if not found["converted models"]:
        lines.append("No model is converted yet: `agentflow models smollm2-135m --fetch` gets the embedded one.")
    return lines


def _thread_counts(device: str) -> list[int]:
    import torch

    return sorted({1, torch.get_num_threads()}) if device == "cpu" else [torch.get_num_threads()]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
