"""The shipped workflow `alfworld`: a planner, an actor in a loop, and a game behind a tool; here a game of ours."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.inputs import task_of
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator, RunOptions
from agentflow.runtime.runs import RunStore
from agentflow.tasks.alfworld import pool, tool
from agentflow.tasks.base import Item
from agentflow.tools import Toolbox
from agentflow.workflow.loader import load_workflow
from tests.fake_world import open_late
from tests.tiny import make_engine, tiny_model

ITEMS = [Item(name, {"task": f"win {name}", "game": name}, (("won",),), "find") for name in ("one", "two")]


@pytest.fixture(scope="module")
def engines():
    engine = make_engine(tiny_model("llama", max_position_embeddings=4096), "tiny-long")
    return EnginePool(factory=lambda spec: engine)


@pytest.fixture
def tools(monkeypatch):
    """The installed tools, with games of ours in place of the engine's."""
    monkeypatch.setattr(tool, "EnvironmentPool", lambda settings: pool.EnvironmentPool(settings, opener=open_late))
    with Toolbox() as box:
        yield box


def test_channels_are_compared_on_won_games(engines, tools):
    workflow = load_workflow("alfworld")
    channels = ["text", "cache", "latent_briefing"]
    options = CompareOptions(controls=("no message", "mismatched"))
    found = compare(workflow, task_of(workflow), ITEMS, channels, engines, options=options, tools=tools)
    rows = {(row.arm, row.item): row for row in found.rows}
    assert {row.error for row in found.rows} == {""}
    for arm in channels:
        for item in ITEMS:
            row = rows[arm, item.id]
            assert row.scores["success"] == 1.0  # nothing else is left to choose in the third round
            assert row.steps == 3
            assert row.messages == 1
    assert rows["text", "one"].answers == rows["cache", "one"].answers
    assert rows["cache", "one"].prefilled < rows["text", "one"].prefilled
    assert rows["no message", "one"].messages == 0


def test_a_round_computes_what_is_new_and_stands_on_all_that_was_before(engines, tools):
    workflow = load_workflow("alfworld").with_channel("cache")
    items = [(item.id, item.inputs) for item in ITEMS]
    results = Orchestrator(bind(workflow, tools), engines, options=RunOptions(reuse=False)).run(items)
    turns = [_turns(result) for result in results]
    for result, acts in zip(results, turns, strict=True):
        assert result.errors == {}
        assert len(acts) == result.nodes["end"][0].value["steps"] == 3
        assert result.outputs["won"] is True
        assert result.outputs["commands"][-1] == "win"
        for before, after in pairwise(acts):
            assert after.reused >= before.reused + before.prefilled


def _turns(result):
    return [rows[0] for node, rows in result.nodes.items() if node.endswith("act") and rows]


def test_a_resumed_game_plays_nothing_again(engines, tools, tmp_path):
    workflow = load_workflow("alfworld")
    items = [("one", ITEMS[0].inputs)]
    first = Orchestrator(bind(workflow, tools), engines, store=RunStore.create(tmp_path, "alfworld", {})).run(items)
    folder = next(tmp_path.iterdir())
    events = []
    store = RunStore.open(folder)
    again = Orchestrator(bind(workflow, tools), engines, store=store, listeners=[events.append]).run(items)
    assert not [e for e in events if e.kind == "node_finished"]
    assert [r.outputs for r in again] == [r.outputs for r in first]
