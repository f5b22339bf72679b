from __future__ import annotations

import pytest

from agentflow.models.pool import EnginePool
from agentflow.workflow.loader import parse_workflow
from tests.tiny import tiny_engine

TINY = "{source: tests/tiny, model: tiny}"


@pytest.fixture
def engines():
    """A pool that serves tiny models, whatever is asked for."""
    return EnginePool(factory=lambda spec: tiny_engine())


@pytest.fixture
def flow():
    """A workflow from a short text; `MODEL` stands for a tiny model."""
    return lambda text: parse_workflow(text.replace("MODEL", TINY))
