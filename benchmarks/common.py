"""What all benchmarks share: the embedded model, interleaved timing, and a table that ends in one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agentflow.evaluation.machine import processor
from agentflow.models.engine import Engine
from agentflow.models.loading import load_model
from agentflow.models.spec import resolve_model

console = Console(width=110, highlight=False)


def arguments(what: str, **numbers: tuple[int, str]) -> argparse.Namespace:
    """`--quick` (under 50 s on two cores), `--model`, and what else is a number: its default and what it is."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 50 s on two cores")
    parser.add_argument("--model", default="smollm2-135m")
    for name, (default, meaning) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default: {default})")
    return parser.parse_args()


def engine(name: str) -> Engine:
    """The engine that is measured."""
    return Engine(load_model(resolve_model(name)))


def interleaved(
    repetitions: int, ways: Mapping[str, Callable[[], Any]], *, warm: int = 1, few: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Seconds of each way, taken in turns so that a busy spell of the machine hits all of them alike.

    A way that has a method `prepare` gets ready there, outside its time.

    Args:
        few: how often the slow ones are taken, instead of `repetitions`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-warm, repetitions):
        for name, way in ways.items():
            if turn >= (few or {}).get(name, repetitions) or (turn < 0 and name in (few or {})):
                continue
            if hasattr(way, "prepare"):
                way.prepare()
            start = time.perf_counter()
            way()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(over: list[float], under: list[float]) -> float:
    """Quotient of the medians."""
    return median(over) / median(under)


def paired(over: list[float], under: list[float]) -> float:
    """Median of the quotients of neighbours in time: robust on a machine whose speed drifts."""
    return median(a / b for a, b in zip(over, under, strict=True))


def report(title: str, seconds: Mapping[str, list[float]], figures: Mapping[str, float | None], **notes: Any) -> None:
    """Print where it ran, each way's median and spread, and the figures as the last line."""
    table = Table(title=title, title_justify="left")
    for column in ("way", "median s", "least s", "most s", "n"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, values in seconds.items():
        table.add_row(name, f"{median(values):.4f}", f"{min(values):.4f}", f"{max(values):.4f}", str(len(values)))
    console.print(table)
    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **notes,
    }
    console.print("  ".join(f"{k}: {v}" for k, v in machine.items()))
    print(json.dumps({name: None if v is None else round(v, 4) for name, v in figures.items()}))
