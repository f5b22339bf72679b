"""The inside of a model actor: one engine, in a process of its own, on whichever node Ray has put it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from agentflow.folders import CACHE_VARIABLE
from agentflow.kv.cache import KVCache
from agentflow.models.engine import Engine
from agentflow.models.loading import load_model
from agentflow.models.requests import Generation, Request, Score
from agentflow.models.spec import ModelSpec
from agentflow.models.tally import Tally, tallied
from agentflow.runtime.executors.actors.views import Bytes, Form, Shipped, pack


@dataclass(frozen=True)
class Ask:
    """A request whose prefix is somewhere else.

    Attributes:
        request: without prefix and callbacks.
        prefix: which of the caches that come with the call; None for none.
        before: how much of it is meant: what stands before this position.
        is_heard: whether somebody listens to the text while it is written.
    """

    request: Request
    prefix: int | None = None
    before: int = 0
    is_heard: bool = False

    def whole(self, caches: Sequence[KVCache]) -> Request:
        """The request on its prefix."""
        if self.prefix is None:
            return self.request
        return replace(self.request, prefix=caches[self.prefix].before(self.before))


@dataclass(frozen=True, eq=False)
class Description:
    """What is to be known of a model without having it: everything of `LoadedModel` but weights and place."""

    config: Any
    generation_config: Any
    tokenizer: Any
    dtype: torch.dtype
    fingerprint: Any
    ropes: Any
    node: str


class ModelActor:
    """Answers what an engine is asked; calls come on several threads, so one may be stopped while it works."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._loading = threading.Lock()
        self._seen: Description | None = None

    def place(self) -> str:
        """The node that it has been placed on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def load(self, spec: dict[str, Any], threads: int, cache: str | None) -> Description:
        """Load its model, where that has not been done.

        Args:
            spec: of the model, as plain values.
            threads: that torch may use.
            cache: the folder of converted models where the program has named one.

        Raises:
            UserError: the model can't be loaded here.
        """
        with self._loading:
            if self._seen is None:
                torch.set_num_threads(threads)
                if cache is not None:
                    os.environ[CACHE_VARIABLE] = cache
                self._engine = Engine(load_model(ModelSpec(**spec)), prefix_bytes=0)
                self._seen = self._description()
            return self._seen

    def _description(self) -> Description:
        loaded, model = self._engine.loaded, self._engine.loaded.model
        generation = getattr(model, "generation_config", None)
        return Description(
            model.config, generation, loaded.tokenizer, loaded.dtype, loaded.fingerprint, loaded.ropes, self.place()
        )

    def process(self) -> int:
        """The number of its process, for who looks after a cluster."""
        return os.getpid()

    def generate(self, name: str, asks: Sequence[Ask], *shipped: Shipped) -> tuple[Any, ...]:
        """Answer requests: what `Answered` says first, then one cache a request, None where none is kept."""
        caches = [one.cache() for one in shipped]
        call = self._calls[name] = _Call(len(asks))
        try:
            requests = [
                replace(ask.whole(caches), cancelled=call.stopped.is_set, on_token=call.writer(n, ask.is_heard))
                for n, ask in enumerate(asks)
            ]
            with tallied() as tally:
                answers = self._engine.generate(requests)
        finally:
            del self._calls[name]
        kept = [None if answer.cache is None else Shipped.of(answer.cache) for answer in answers]
        head = Answered([replace(answer, cache=None) for answer in answers], tally, call.texts)
        return (head, *kept)

    def stop(self, name: str) -> None:
        """End a call within one decoding step."""
        call = self._calls.get(name)
        if call is not None:
            call.stopped.set()

    def said(self, name: str) -> list[str] | None:
        """The texts of a call so far; None where it is not under way."""
        call = self._calls.get(name)
        return None if call is None else list(call.texts)

    def queries(self, token_ids: Sequence[int], before: int, *shipped: Shipped) -> list[tuple[list[Bytes], Form]]:
        """Queries of every layer."""
        return [pack(layer) for layer in self._engine.queries(_only(shipped, before), token_ids)]

    def score(self, prompt: Sequence[int], answer: Sequence[int], whole: bool, before: int, *shipped: Shipped) -> Score:
        """How likely an answer is."""
        return self._engine.score(_only(shipped, before), prompt, answer, keep_distribution=whole)

    def likelihoods(
        self, token_id: int, answers: Sequence[Sequence[int]], before: int, *shipped: Shipped
    ) -> list[float]:
        """How likely each answer is."""
        return self._engine.likelihoods(_only(shipped, before), token_id, answers)


@dataclass(frozen=True, eq=False)
class Answered:
    """What comes back of a call beside caches: answers without theirs, tokens computed, and the texts as heard."""

    answers: list[Generation]
    tally: Tally
    texts: list[str]


class _Call:
    """A call that is under way."""

    def __init__(self, rows: int) -> None:
        self.stopped = threading.Event()
        self.texts = [""] * rows

    def writer(self, row: int, is_heard: bool) -> Callable[[str], None] | None:
        """What takes down the text of a row, where somebody wants to hear it."""

        def write(text: str) -> None:
            self.texts[row] += text

        return write if is_heard else None


def _only(shipped: Sequence[Shipped], before: int) -> KVCache | None:
    return shipped[0].cache().before(before) if shipped else None
