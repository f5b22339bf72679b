"""Engines by model, loaded when first needed and then shared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from agentflow.models.embedded import Progress, on_disk, silent
from agentflow.models.engine import Engine
from agentflow.models.loading import load_model
from agentflow.models.remote import RemoteModel
from agentflow.models.spec import ModelSpec

Speaker: TypeAlias = Engine | RemoteModel
"""What answers for an agent: an engine here, or a model that is served elsewhere."""


class EnginePool:
    """One engine for each model specification.

    Args:
        progress: told about fetching and loading.
        factory: makes an engine of a specification; the default loads it.
    """

    def __init__(self, progress: Progress = silent, factory: Callable[[ModelSpec], Engine] | None = None) -> None:
        self._progress = progress
        self._factory = factory or self._load
        self._engines: dict[ModelSpec, Engine] = {}
        self._remote: dict[ModelSpec, RemoteModel] = {}
        self._lock = threading.Lock()

    def get(self, spec: ModelSpec) -> Engine:
        """The engine of `spec`, loading it the first time.

        Raises:
            ModelError: it can't be loaded, or is served elsewhere, so that there is no engine of it.
        """
        with self._lock:
            if spec not in self._engines:
                self._engines[spec] = self._factory(spec)
            return self._engines[spec]

    def require(self, specs: Iterable[ModelSpec]) -> None:
        """Refuse models that can't be had, as far as that is seen without asking anybody, before one is loaded.

        Raises:
            ModelError: a folder without a model, or one that has to be made first.
        """
        for spec in specs:
            if self._factory == self._load and spec.remote is None and spec not in self._engines:
                on_disk(spec)

    def speaker(self, spec: ModelSpec) -> Speaker:
        """What answers for an agent on `spec`. Raises `ModelError` as `get` does, or where a key is not set."""
        if spec.remote is None:
            return self.get(spec)
        with self._lock:
            if spec not in self._remote:
                self._remote[spec] = RemoteModel(spec)
            return self._remote[spec]

    def loaded(self, spec: ModelSpec) -> Engine | None:
        """The engine of `spec` if it is there already; never waits for one that is being loaded."""
        return self._engines.get(spec)

    def add(self, spec: ModelSpec, engine: Engine) -> None:
        """Use an engine that exists already for `spec`."""
        with self._lock:
            self._engines[spec] = engine

    def _load(self, spec: ModelSpec) -> Engine:
        return Engine(load_model(spec, self._progress))
