"""The only place that runs a model: prefill, decode, score, and look at queries.

Batches are ragged: rows differ in prompt, prefix, length, sampling, stop strings and deadline, and each row's
answer is the one it would get alone. New tokens are padded on the left; prefixes are never padded nor copied (see
`attention`); positions are explicit everywhere.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from agentflow.errors import ModelError
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Fingerprint
from agentflow.models.batching import SHARE_OF_FREE, free_bytes, halving, split
from agentflow.models.choosing import choose
from agentflow.models.decoding import Row
from agentflow.models.families import has_windows, max_positions
from agentflow.models.loading import LoadedModel
from agentflow.models.plan import Plan, Segment, planned
from agentflow.models.prefixes import PrefixStore
from agentflow.models.requests import Generation, Request, Score
from agentflow.models.tally import count

LOGITS = 1 << 26
"""Logits that are looked at together where whole answers are scored: 256 MiB in float32."""


@dataclass(eq=False)
class _Batch:
    """The moving state of a batch: transformers' cache of the rows' own tokens, their places, their rows."""

    cache: Any
    positions: Tensor  # (B, m)
    valid: Tensor  # (B, m)
    prefixes: list[KVCache | None]
    rows: list[int]  # numbers in the request list


class Engine:
    """Runs one loaded model. Calls from several threads go on beside one another; their forward passes take turns.

    Args:
        memory_budget: bytes of KV cache that one batch may add; None for a share of what is free.
        prefix_bytes: budget of `prefixes`, the store of computed token prefixes.
    """

    def __init__(self, loaded: LoadedModel, *, memory_budget: int | None = None, prefix_bytes: int = 1 << 30) -> None:
        self.loaded = loaded
        self.prefixes = PrefixStore(prefix_bytes)
        self._memory_budget = memory_budget
        self.tokenizer = loaded.tokenizer
        # All a call changes is its own, but for what a model keeps between layers: RoPE tables that grow with the
        # positions (dynamic, longrope), weights that are moved in and out for each pass.
        self._pass = threading.Lock()
        names = inspect.signature(loaded.model.forward).parameters
        # transformers 5.24 renamed the argument; this is the one place that knows.
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._trims_logits = "logits_to_keep" in names
        self._end_ids = self._find_end_ids()

    @property
    def fingerprint(self) -> Fingerprint:
        """What a cache must match to be used here."""
        return self.loaded.fingerprint

    @property
    def max_positions(self) -> int | None:
        """How many positions the model was trained for, where its configuration says."""
        return max_positions(self.loaded.model.config)

    @cached_property
    def attention_scale(self) -> float:
        """What the model multiplies its attention logits by."""
        for module in self.loaded.model.modules():
            if hasattr(module, "layer_idx") and hasattr(module, "scaling"):
                return float(module.scaling)
        key_dim = self.fingerprint.geometry.layers[0][1]
        return float(key_dim**-0.5)

    @cached_property
    def has_windows(self) -> bool:
        """Whether some layers see only a window of positions."""
        return has_windows(self.loaded.model.config)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are to choose from."""
        return int(self.loaded.model.config.get_text_config().vocab_size)

    @property
    def bytes_per_position(self) -> int:
        """What one position of a cache costs."""
        return self.fingerprint.geometry.scalars_per_position * self.loaded.dtype.itemsize

    def prefill(self, token_ids: Sequence[int], onto: KVCache | None = None) -> KVCache:
        """The cache of `onto` followed by `token_ids`; `onto` itself stays as it is."""
        if not token_ids:
            if onto is None:
                raise ModelError("There is nothing to prefill: no tokens and no cache.")
            return onto
        request = Request(tuple(token_ids), onto, max_new_tokens=0, keep_cache=True)
        cache = self.generate([request])[0].cache
        assert cache is not None
        return cache

    def queries(self, cache: KVCache | None, token_ids: Sequence[int]) -> tuple[Tensor, ...]:
        """Queries of `token_ids` on top of `cache`, per layer `(heads, n, head_dim)`, after RoPE."""
        captured: dict[int, Tensor] = {}
        with torch.no_grad():
            self._forward([Request(tuple(token_ids), cache)], capture=captured)
        return tuple(captured[layer][0] for layer in sorted(captured))

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Answer all requests, in their order: as one batch where it fits into memory, else as several.

        Raises:
            ModelError: a request is empty, longer than the model's positions, or its prefix is foreign.
        """
        for request in requests:
            self.check(request)
        if not requests:
            return []
        with torch.no_grad():
            budget = self._memory_budget or int(SHARE_OF_FREE * free_bytes(self.loaded.device))
            batches = split([r for r in requests if not r.choices], self.bytes_per_position, budget)
            answers = (answer for batch in batches for answer in halving(self._decode, batch))
            return [choose(self, r) if r.choices else next(answers) for r in requests]

    def score(
        self, prefix: KVCache | None, prompt: Sequence[int], answer: Sequence[int], *, keep_distribution: bool = False
    ) -> Score:
        """How likely `answer` is behind `prefix` and `prompt` (not empty)."""
        if not prompt or not answer:
            raise ModelError("Scoring needs a prompt and an answer of at least one token each.")
        request = Request((*prompt, *answer), prefix)
        self.check(request)
        with torch.no_grad():
            logits, _ = self._forward([request], keep=len(answer) + 1)
        log_probs = logits[0, :-1].float().log_softmax(dim=-1)
        chosen = log_probs.gather(1, torch.tensor(answer, device=log_probs.device)[:, None])[:, 0]
        return Score(chosen.cpu(), log_probs.cpu() if keep_distribution else None)

    def logits(self, requests: Sequence[Request], keep: int) -> Tensor:
        """The last `keep` logits of every request `(B, keep, vocabulary)`; shorter rows are padded on the left.

        Unlike all other calls this one keeps the gradient with respect to the requests' prefixes, where they need one.
        """
        for request in requests:
            self.check(request)
        return self._forward(requests, keep=keep)[0]

    def likelihoods(self, prefix: KVCache | None, token_id: int, answers: Sequence[Sequence[int]]) -> list[float]:
        """How likely each answer is behind `prefix` and one more token: natural logarithms, summed over its tokens.

        The answers are rows of one batch (several, where memory asks for that) that share the prefix.
        """
        requests = [Request((token_id, *answer), prefix, max_new_tokens=0) for answer in answers]
        for request in requests:
            self.check(request)
        most = max(1, LOGITS // (self.vocabulary * max(len(r.token_ids) for r in requests)))
        with torch.no_grad():
            blocks = (requests[n : n + most] for n in range(0, len(requests), most))
            return [total for block in blocks for total in halving(self._likelihoods, block)]

    def check(self, request: Request) -> None:
        """Refuse what `generate` can't answer.

        Raises:
            ModelError: no tokens, more than the model has positions for, or a prefix of another shape.
        """
        name, limit = self.loaded.spec.model, self.max_positions
        if not request.token_ids:
            raise ModelError("A request needs at least one token to prefill.")
        prompt = len(request.token_ids) + (request.prefix.next_rotary if request.prefix else 0)
        if limit is not None and prompt + request.max_new_tokens > limit:
            raise ModelError(
                f"{prompt:,} tokens and {request.max_new_tokens:,} new ones are more than the {limit:,} positions "
                f"of '{name}'.",
                fix="Send less (fewer paragraphs, a compacting channel) or choose a model with more positions.",
            )
        if request.prefix is not None and request.prefix.geometry != self.fingerprint.geometry:
            raise ModelError(
                f"A cache of {request.prefix.geometry} does not fit '{name}' ({self.fingerprint.geometry})."
            )

    # -- inside -----------------------------------------------------------------------------------------

    def _likelihoods(self, requests: Sequence[Request]) -> list[float]:
        """Of every row's tokens but the first, given those before."""
        longest = max(len(r.token_ids) for r in requests)
        logits, _ = self._forward(requests, keep=longest)
        totals = []
        for row, request in zip(logits, requests, strict=True):
            own = row[-len(request.token_ids) : -1].float().log_softmax(dim=-1)
            asked = torch.tensor(request.token_ids[1:], device=own.device)[:, None]
            totals.append(float(own.gather(1, asked).sum()))
        return totals

    def _decode(self, requests: Sequence[Request]) -> list[Generation]:
        start = time.perf_counter()
        rows = [Row(r, self.tokenizer, self._end_ids) for r in requests]
        caches: dict[int, KVCache] = {}
        logits, batch = self._forward(requests)
        elapsed = time.perf_counter() - start
        for row in rows:
            row.first_token_seconds = row.seconds = elapsed
        while True:
            for place, number in enumerate(batch.rows):
                if not rows[number].interrupted(elapsed):
                    rows[number].step(logits[place, -1], elapsed)
            done = [place for place, number in enumerate(batch.rows) if rows[number].finish]
            for place in done:
                number = batch.rows[place]
                if requests[number].keep_cache:
                    caches[number] = self._row_cache(batch, place)
            batch = _without(batch, done)
            if not batch.rows:
                break
            logits = self._step(batch, [rows[number].token_ids[-1] for number in batch.rows])
            elapsed = time.perf_counter() - start
        count(generated=sum(len(row.token_ids) for row in rows))
        return [_generation(row, caches.get(number)) for number, row in enumerate(rows)]

    def _forward(
        self, requests: Sequence[Request], *, keep: int = 1, capture: dict[int, Tensor] | None = None
    ) -> tuple[Tensor, _Batch]:
        """Prefill all rows; logits `(B, keep, vocabulary)` of the last places, and the state to go on from."""
        from transformers import DynamicCache

        device = self.loaded.device
        longest = max(len(r.token_ids) for r in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.long)
        positions, valid = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for i, r in enumerate(requests):
            n, first = len(r.token_ids), r.prefix.next_rotary if r.prefix else 0
            ids[i, longest - n :] = torch.tensor(r.token_ids)
            positions[i, longest - n :] = torch.arange(first, first + n)
            valid[i, longest - n :] = True
        prefixes = [r.prefix.to(device) if r.prefix else None for r in requests]
        batch = _Batch(DynamicCache(), positions.to(device), valid.to(device), prefixes, list(range(len(requests))))
        logits = self._run(batch, ids.to(device), keep, capture)
        count(prefilled=sum(len(r.token_ids) for r in requests))
        return logits, batch

    def _step(self, batch: _Batch, token_ids: list[int]) -> Tensor:
        """One more token for every row of the batch; logits `(B, 1, vocabulary)`."""
        batch.positions = torch.cat([batch.positions, batch.positions[:, -1:] + 1], dim=1)
        batch.valid = torch.cat([batch.valid, torch.ones_like(batch.valid[:, :1])], dim=1)
        ids = torch.tensor(token_ids, device=batch.positions.device)[:, None]
        return self._run(batch, ids, 1, None)

    def _run(self, batch: _Batch, ids: Tensor, keep: int, capture: dict[int, Tensor] | None) -> Tensor:
        valid = None if bool(batch.valid.all()) else batch.valid
        plan = Plan(_segments(batch.prefixes), batch.positions, valid, capture)
        return self.run_model(ids, plan, batch.cache, keep)

    def run_model(self, ids: Tensor, plan: Plan, cache: Any, keep: int = 1) -> Tensor:
        """One forward pass of `ids (B, n)` as the plan says; the last `keep` logits `(B, keep, vocabulary)`.

        Args:
            cache: transformers' cache of the batch's own tokens; extended in place.
        """
        arguments: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if self._trims_logits:
            arguments["logits_to_keep"] = keep
        with self._pass, planned(plan):
            output = self.loaded.model(input_ids=ids, position_ids=plan.positions[:, -ids.shape[1] :], **arguments)
        logits: Tensor = output.logits
        return logits[:, -keep:]

    def _row_cache(self, batch: _Batch, place: int) -> KVCache:
        """The cache of one row: its prefix, and its own tokens behind it."""
        own = int(batch.valid[place].sum())
        keys = [layer.keys[place, :, -own:] for layer in batch.cache.layers]
        values = [layer.values[place, :, -own:] for layer in batch.cache.layers]
        prefix = batch.prefixes[place]
        if prefix is not None:
            return prefix.extend(keys, values)
        return KVCache.stacked([k.clone() for k in keys], [v.clone() for v in values])

    def _find_end_ids(self) -> frozenset[int]:
        configured = getattr(getattr(self.loaded.model, "generation_config", None), "eos_token_id", None)
        ids = configured if isinstance(configured, list) else [configured, self.tokenizer.eos_token_id]
        return frozenset(int(i) for i in ids if i is not None)


def _segments(prefixes: Sequence[KVCache | None]) -> list[Segment]:
    """The distinct prefixes of a batch with the rows on each; equal views of the same memory are one prefix.

    Every tensor counts: what was fused into a cache shares the memory of the layers and parts that it left alone.
    """
    groups: dict[tuple[int, ...], tuple[KVCache, list[int]]] = {}
    for row, prefix in enumerate(prefixes):
        if prefix is not None and len(prefix):
            tensors = (*prefix.keys, *prefix.values, *(prefix.bias or ()))
            key = (len(prefix), prefix.next_position, prefix.next_rotary, *(t.data_ptr() for t in tensors))
            groups.setdefault(key, (prefix, []))[1].append(row)
    every = len(prefixes)
    return [Segment(cache, None if len(rows) == every else tuple(rows)) for cache, rows in groups.values()]


def _without(batch: _Batch, done: list[int]) -> _Batch:
    """The batch without the rows that are finished."""
    if not done:
        return batch
    left = [place for place in range(len(batch.rows)) if place not in set(done)]
    index = torch.tensor(left, dtype=torch.long, device=batch.positions.device)
    if left:
        batch.cache.batch_select_indices(index)
    return _Batch(
        batch.cache,
        batch.positions[index],
        batch.valid[index],
        [batch.prefixes[place] for place in left],
        [batch.rows[place] for place in left],
    )


def _generation(row: Row, cache: KVCache | None) -> Generation:
    assert row.finish is not None
    prefix = row.request.prefix
    return Generation(
        token_ids=tuple(row.token_ids),
        text=row.text,
        finish=row.finish,
        prefilled=len(row.request.token_ids),
        reused=len(prefix) if prefix else 0,
        first_token_seconds=row.first_token_seconds,
        seconds=row.seconds,
        cache=cache,
    )
