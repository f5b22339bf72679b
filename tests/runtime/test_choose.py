"""`choose`: a node that answers with one of the answers that an expression gives."""

from __future__ import annotations

import pytest

from agentflow.errors import WorkflowError
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore

PICK = """
workflow: pick
inputs: {options: list}
agents: {a: {model: MODEL}}
nodes:
  read: {agent: a, prompt: "red or blue", max_new_tokens: 0}
  pick: {agent: a, prompt: which, choose: inputs.options}
  next: {agent: a, prompt: "so {{ nodes.pick.text }}", max_new_tokens: 3}
edges:
  - {from: read, to: pick, channel: CHANNEL}
  - {from: pick, to: next, channel: CHANNEL}
outputs: {picked: "{{ nodes.pick.text }}", next: "{{ nodes.next.text }}"}
"""
OPTIONS = ["red", "blue london", "seven", "the code of room"]


@pytest.fixture
def run(flow, engines):
    def go(options=OPTIONS, channel="cache", store=None):
        events = []
        binding = bind(flow(PICK.replace("CHANNEL", channel)))
        runner = Orchestrator(binding, engines, store=store, listeners=[events.append])
        return runner.run([("x", {"options": options})])[0], events

    return go


def test_the_answer_is_one_of_the_list_and_the_same_over_text_and_cache(run):
    over_cache, _ = run()
    over_text, _ = run(channel="text")
    assert over_cache.outputs["picked"] in OPTIONS
    assert over_cache.outputs == over_text.outputs
    assert over_cache.nodes["next"][0].reused > over_cache.nodes["pick"][0].reused > 0


@pytest.mark.parametrize("options", [[], ["red", 3], [" "]])
def test_a_list_that_is_none_of_answers_is_an_error_at_its_place(run, options):
    result, _ = run(options)
    assert "`choose` gave" in result.errors["x/pick"]
    assert ":7:" in result.errors["x/pick"]


def test_other_options_are_another_question(run, tmp_path):
    run(store=RunStore.create(tmp_path, "pick", {}))
    folder = next(tmp_path.iterdir())
    _, events = run(store=RunStore.open(folder))
    assert not [e for e in events if e.kind == "node_finished"]
    _, events = run([*OPTIONS, "green"], store=RunStore.open(folder))
    assert next(e.node for e in events if e.kind == "node_finished") == "pick"


def test_a_misspelt_list_is_told_before_anything_runs(flow):
    with pytest.raises(WorkflowError, match=r"nodes\.pick\.choose: unknown input 'optons'"):
        flow(PICK.replace("inputs.options", "inputs.optons"))
