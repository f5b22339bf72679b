"""What one forward pass attends to: prefixes, the rows that stand on them, and where the batch's own tokens are.

Masks are built from positions, not from indices, because a compacted prefix has holes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from agentflow.kv.cache import KVCache
from agentflow.models.partial import NEGATIVE


@dataclass(frozen=True, eq=False)
class Segment:
    """A prefix and the rows of the batch that stand on it.

    Attributes:
        cache: the shared keys and values.
        rows: row numbers, or None for every row.
        causal: whether some entries may stand behind a query (when positions inside a text are computed anew).
    """

    cache: KVCache
    rows: tuple[int, ...] | None = None
    causal: bool = False


@dataclass(frozen=True, eq=False)
class Wave:
    """Prefixes of different rows: what is attended to them is laid side by side, and merged at once.

    Attributes:
        segments: each with its row numbers `(R,)`, None for every row.
        rows: the row numbers `(R,)` of what lies side by side; None: every row, in the order that `order` makes.
        order: `(B,)` puts every row in the batch's order; None: they are.
    """

    segments: Sequence[tuple[Segment, Tensor | None]]
    rows: Tensor | None
    order: Tensor | None

    @classmethod
    def of(cls, segments: Sequence[Segment], every: int, device: torch.device) -> Wave:
        """Segments that share no row, in a batch of `every` rows."""
        placed = [(s, None if s.rows is None else torch.tensor(s.rows, device=device)) for s in segments]
        rows = [row for s in segments for row in (range(every) if s.rows is None else s.rows)]
        if len(rows) < every:
            return cls(placed, torch.tensor(rows, device=device), None)
        order = sorted(range(every), key=rows.__getitem__)
        return cls(placed, None, None if order == sorted(order) else torch.tensor(order, device=device))


@dataclass(eq=False)
class Plan:
    """What one forward pass attends to.

    Attributes:
        segments: prefixes; a row may stand on several.
        positions: `(B, m)` position of each of the batch's own entries, those of this pass last.
        valid: `(B, m)` whether the entry is a token (not padding); None when all are.
        capture: where to put the queries `(B, heads, n, head_dim)` by layer, or None.
        stop_at: end the forward pass in this layer's attention by raising `Stopped` with its keys and values.
    """

    segments: Sequence[Segment]
    positions: Tensor
    valid: Tensor | None = None
    capture: dict[int, Tensor] | None = None
    stop_at: int | None = None
    _masks: dict[tuple[int, int | None, torch.dtype], Tensor | None] = field(default_factory=dict)

    @cached_property
    def waves(self) -> list[Wave]:
        """The prefixes that are not empty, in their order, in as few waves as that order allows."""
        every = range(len(self.positions))
        waves: list[list[Segment]] = []
        taken: list[set[int]] = []
        for segment in (s for s in self.segments if len(s.cache)):
            rows = every if segment.rows is None else segment.rows
            at = next((n for n, others in enumerate(taken) if others.isdisjoint(rows)), len(waves))
            if at == len(waves):
                waves.append([])
                taken.append(set())
            waves[at].append(segment)
            taken[at].update(rows)
        return [Wave.of(wave, len(every), self.positions.device) for wave in waves]

    @cached_property
    def span(self) -> int:
        """Positions from a row's first entry to its last, of the row where that is most: there may be holes."""
        return int((self.positions[:, -1] - self.positions[:, 0]).max()) + 1

    def own_mask(self, n: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Additive mask `(B, 1, n, m)` of the last `n` entries over all `m`, or None where nothing is hidden."""
        key = (n, window, dtype)
        if key not in self._masks:
            self._masks[key] = self._build_own_mask(n, window, dtype)
        return self._masks[key]

    def _build_own_mask(self, n: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        queries, keys = self.positions[:, -n:, None], self.positions[:, None, :]
        seen = keys <= queries
        if self.valid is not None:
            seen = seen & self.valid[:, None, :]
        if window is not None:
            seen = seen & (queries - keys < window)
        if bool(seen.all()):
            return None
        # A padding token sees itself, so that its softmax is defined; nobody sees it.
        seen = seen | torch.eye(keys.shape[-1], dtype=torch.bool, device=seen.device)[-n:]
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, NEGATIVE).unsqueeze(1)


current: ContextVar[Plan | None] = ContextVar("agentflow_attention_plan", default=None)
"""The plan of the forward pass that runs, for the attention of its layers."""


@contextmanager
def planned(plan: Plan) -> Iterator[None]:
    """Let the forward passes inside attend to what `plan` says."""
    token = current.set(plan)
    try:
        yield
    finally:
        current.reset(token)
