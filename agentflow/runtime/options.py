"""How a workflow is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Overlap = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run.

    Attributes:
        seed: every unit's own seed is derived from it, its item, node and child.
        max_batch: units of one model that are answered as one batch.
        per_device: models of one device that work at the same time; None for all that have something to do. Answers
            are the same.
        reuse: look for token prefixes that were computed before, also by other nodes. Off in comparisons, where
            every receiver must pay for what it is sent.
        overlap: deliver what is sent to a model's next units while it decodes for others (see `runtime.ahead`; auto: on
            CUDA), and let a receiver that reads the sender's conversation itself do so while the sender answers (see
            `runtime.along`; auto: where they are on different devices). Answers are the same.
        keep_going: after a failure, run everything that does not depend on it; else start nothing more.
        until: run this node and what it depends on, and nothing else.
        keep_payloads: write every payload into the run's folder.
        signing_key: signs them.
    """

    seed: int = 0
    max_batch: int = 8
    per_device: int | None = None
    reuse: bool = True
    overlap: Overlap = "auto"
    keep_going: bool = True
    until: str | None = None
    keep_payloads: bool = False
    signing_key: bytes | None = None
