"""Episodes in a comparison: agents act in a world by a tool, and what counts is how that ends."""

from __future__ import annotations

import json

import pytest

from agentflow.errors import UserError
from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.figures import measure
from agentflow.evaluation.inputs import task_of
from agentflow.evaluation.report.markdown import markdown_report
from agentflow.evaluation.summary import summarize
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.tasks.alfworld import AlfWorld, EnvironmentPool, PoolSettings
from agentflow.tasks.alfworld.tool import AlfWorldTool
from agentflow.tasks.base import Item
from agentflow.tools import Toolbox
from agentflow.workflow.loader import parse_workflow
from tests.fake_world import open_fake
from tests.tiny import tiny_engine

PLAY = """
workflow: play
task: {name: alfworld, answer: end}
inputs: {task: string, game: string}
agents: {planner: {model: MODEL}, actor: {model: MODEL}}
nodes:
  plan: {agent: planner, prompt: "{{ inputs.task }}", max_new_tokens: 3}
  start: {tool: world, with: {game: "{{ inputs.game }}", actions: []}}
  act: {agent: actor, prompt: now, choose: "[inputs.task]"}
  step: {tool: world, with: {game: "{{ inputs.game }}", actions: ["{{ nodes.act.text }}"]}}
  again: {agent: actor, prompt: then, when: "not nodes.step.done", choose: "nodes.step.admissible[2:3]"}
  end: {tool: world, with: {game: "{{ inputs.game }}", actions: "{{ nodes.act.texts + nodes.again.texts }}"}}
edges:
  - {from: plan, to: act}
  - {from: start, to: act}
  - {from: act, to: step}
  - {from: act, to: again, channel: cache, fixed: true}
  - {from: step, to: again}
  - {from: step, to: end}
  - {from: again, to: end}
""".replace("MODEL", "{source: tests/tiny, model: tiny}")


def item(name, task, kind):
    return Item(name, {"task": task, "game": name}, (("won",),), kind)


ITEMS = [item("one", "win", "easy"), item("two", "look", "hard"), item("three", "win", "easy")]


@pytest.fixture(scope="module")
def engines():
    return EnginePool(factory=lambda spec: tiny_engine())


@pytest.fixture(scope="module")
def tools():
    played = AlfWorldTool(EnvironmentPool(PoolSettings(processes=1), opener=open_fake))

    def world(game: str, actions: list[str]) -> dict[str, object]:
        return played(game, actions, max_steps=2)

    yield Toolbox([world])
    played.close()


@pytest.fixture(scope="module")
def compared(engines, tools):
    options = CompareOptions(controls=("no message", "sender alone", "mismatched"))
    return compare(parse_workflow(PLAY), AlfWorld(), ITEMS, ["text", "cache"], engines, options=options, tools=tools)


def test_channels_are_compared_on_how_episodes_end(compared):
    rows = {(r.arm, r.item): r for r in compared.rows}
    for arm in ("text", "cache"):
        assert rows[arm, "one"].scores == {"success": 1.0, "spared": 0.98}
        assert (rows[arm, "one"].steps, rows[arm, "two"].steps) == (1, 2)
        assert json.loads(rows[arm, "one"].answers[0]) == {"won": True, "steps": 1}
        assert rows[arm, "one"].error == ""
        assert rows[arm, "one"].nll is None
    assert rows["text", "two"].answers == rows["cache", "two"].answers


def test_every_turn_of_the_receiver_is_counted_and_stands_on_the_one_before(compared):
    rows = {(r.arm, r.item): r for r in compared.rows}
    assert rows["cache", "two"].prefilled > rows["cache", "one"].prefilled  # two turns, not one
    assert rows["cache", "two"].reused > 0
    assert rows["text", "two"].messages == rows["cache", "two"].messages == 1


def test_controls_are_made_where_they_mean_something(compared):
    rows = {(r.arm, r.item): r for r in compared.rows}
    assert "is a tool" in rows["sender alone", "one"].error
    assert rows["no message", "one"].error == ""
    assert rows["no message", "one"].messages == 0
    assert rows["mismatched(cache)", "one"].scores["success"] == 0.0  # what it was told to do is the next item's


def test_reports_show_success_and_steps_by_group(compared):
    summary = summarize(compared)
    text = summary.arm("text")
    assert text.steps.mean == pytest.approx(4 / 3)
    assert {group: found.mean for group, found in text.group_steps.items()} == {"easy": 1.0, "hard": 2.0}
    report = markdown_report(summary, compared)
    assert "## Steps by group" in report
    assert "## success by group" in report


def test_a_run_over_episodes_scores_them(engines, tools):
    workflow, task = parse_workflow(PLAY), AlfWorld()
    binding = bind(workflow, tools)
    results = Orchestrator(binding, engines).run([(i.id, i.inputs) for i in ITEMS])
    figures = measure(binding, task, "text", ITEMS, results)
    assert figures.mean("success") == pytest.approx(2 / 3)
    assert figures.by_group() == [("easy", 2, 1.0, 1.0), ("hard", 1, 0.0, 2.0)]


def test_a_game_that_breaks_is_a_failed_item_and_no_lost_one(engines, tools):
    binding = bind(parse_workflow(PLAY), tools)
    broken = [item("broken", "win", "easy")]
    results = Orchestrator(binding, engines).run([(i.id, i.inputs) for i in broken])
    (found,) = measure(binding, AlfWorld(), "text", broken, results).items
    assert "no such game" in found.error
    assert found.scores == {}


def test_a_workflow_that_answers_with_words_can_not_play():
    words = parse_workflow(PLAY.replace("answer: end}", "answer: act}"))
    with pytest.raises(UserError, match="answers them with words"):
        task_of(words)


def test_a_tool_that_does_not_say_how_it_ended_is_told(engines):
    def world(game: str, actions: list[str]) -> dict[str, object]:
        return {"done": False, "admissible": ["look"] * 3}

    binding = bind(parse_workflow(PLAY), Toolbox([world]))
    results = Orchestrator(binding, engines).run([("one", ITEMS[0].inputs)])
    with pytest.raises(UserError, match="'end' does not say how the episode ended"):
        measure(binding, AlfWorld(), "text", ITEMS[:1], results)
