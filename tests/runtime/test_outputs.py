"""Nodes whose answers must be JSON: what fits is read by templates, what does not is asked for again."""

from __future__ import annotations

import pytest

from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore

# What a tiny model says is no JSON, so it is given answers to choose from.
ASK = """
workflow: ask
inputs: {answers: list}
agents: {a: {model: MODEL, system: answer}}
nodes:
  one:
    agent: a
    prompt: who is red
    choose: inputs.answers
    temperature: 100.0
    output:
      schema: {type: object, properties: {code: {type: integer}}, required: [code]}
      attempts: 3
  next: {agent: a, prompt: "so {{ nodes.one.code + 1 }}", max_new_tokens: 3}
edges:
  - {from: one, to: next, channel: CHANNEL}
outputs: {code: "{{ nodes.one.code }}", value: "{{ nodes.one.value }}", next: "{{ nodes.next.text }}"}
"""
GOOD, BAD = '{"code": 7}', '{"code": "seven"}'


@pytest.fixture
def run(flow, engines):
    def go(answers, *, seed=0, channel="cache", store=None, text=ASK):
        events = []
        binding = bind(flow(text.replace("CHANNEL", channel)))
        options = RunOptions(seed=seed)
        runner = Orchestrator(binding, engines, store=store, listeners=[events.append], options=options)
        return runner.run([("x", {"answers": answers})])[0], events

    return go


@pytest.fixture
def asked_again(run):
    """A seed with which the first answer does not fit and a later one does."""
    for seed in range(40):
        result, _ = run([GOOD, BAD, BAD, BAD], seed=seed)
        if not result.errors and result.nodes["one"][0].generated > len(GOOD) + 5:
            return seed
    raise AssertionError("no such seed")


def test_an_answer_that_fits_is_read_by_templates(run):
    result, _ = run([GOOD])
    assert result.errors == {}
    assert result.outputs["value"] == {"code": 7}
    assert result.outputs["code"] == 7


def test_answers_that_never_fit_are_an_error_that_says_why(run):
    result, _ = run([BAD], text=ASK.replace("attempts: 3", "attempts: 2"))
    assert result.errors["x/one"] == (
        "no answer that fits its schema: at code: 'seven' is not of type 'integer'"
    )  # fmt: skip


def test_it_is_an_error_of_its_own_kind(run):
    text = ASK.replace("attempts: 3", "attempts: 1\n    retry: {count: 2, on: output}\n    on_error: skip")
    result, events = run([BAD], text=text)
    assert len([e for e in events if e.kind == "node_retried"]) == 2
    assert "x/one" in result.skipped
    _, events = run([BAD], text=text.replace("on: output", "on: timeout"))
    assert not [e for e in events if e.kind == "node_retried"]


def test_text_that_is_no_json_is_asked_for_again_as_often_as_is_said(run, engines):
    text = ASK.replace("    choose: inputs.answers\n", "    max_new_tokens: 4\n").replace("attempts: 3", "attempts: 3")
    result, events = run([], text=text)
    assert "it is no JSON" in result.errors["x/one"]
    spoken = [e for e in events if e.kind == "node_token" and e.node == "one"]
    assert len(spoken) >= 3


def test_a_second_try_follows_on_the_first_and_receivers_hear_of_the_last_alone(run, asked_again):
    again, _ = run([GOOD, BAD, BAD, BAD], seed=asked_again)
    one = again.nodes["one"][0]
    assert one.text == GOOD
    at_once, _ = run([GOOD], seed=asked_again)
    assert one.generated > at_once.nodes["one"][0].generated
    assert one.prefilled > at_once.nodes["one"][0].prefilled
    assert again.outputs == at_once.outputs  # the receiver was sent the same
    over_text, _ = run([GOOD, BAD, BAD, BAD], seed=asked_again, channel="text")
    assert over_text.outputs == again.outputs


def test_a_conversation_that_grows_too_long_is_an_error_of_its_node_alone(run):
    text = ASK.replace("attempts: 3", "attempts: 20\n    map: {over: [1, 2]}\n    on_error: skip").replace(
        "so {{ nodes.one.code + 1 }}", "so"
    )
    result, _ = run([BAD], text=text.replace('"{{ nodes.one.code }}"', '""'))
    assert result.errors == {}
    assert all("it can't be asked again" in result.skipped[f"x/one[{child}]"] for child in (0, 1))


def test_what_was_found_is_kept_and_made_again_for_a_receiver(run, asked_again, tmp_path):
    answers = [GOOD, BAD, BAD, BAD]
    first, _ = run(answers, seed=asked_again, store=RunStore.create(tmp_path, "ask", {}))
    folder = next(tmp_path.iterdir())
    again, events = run(answers, seed=asked_again, store=RunStore.open(folder))
    assert not [e for e in events if e.kind == "node_finished"]
    forced, events = run(answers, seed=asked_again, store=RunStore.open(folder, forced=["next"]))
    assert [e.node for e in events if e.kind == "node_finished"] == ["next"]
    assert first.outputs == again.outputs == forced.outputs
    _, events = run(
        answers, seed=asked_again, store=RunStore.open(folder), text=ASK.replace("attempts: 3", "attempts: 4")
    )
    assert next(e.node for e in events if e.kind == "node_finished") == "one"


ROUNDS = """
workflow: rounds
inputs: {answers: list}
agents: {a: {model: MODEL, system: answer}}
nodes:
  play:
    loop:
      max: 4
      until: "nodes.one.code == round"
      nodes:
        before: {agent: a, prompt: "{% if rounds %}{{ nodes.one.code }}{% else %}none{% endif %}", max_new_tokens: 2}
        one:
          agent: a
          prompt: "{{ nodes.before.text }} who is red"
          choose: "[inputs.answers[round]]"
          output: {schema: {type: object, properties: {code: {type: integer}}, required: [code]}, attempts: 1}
      edges: [{from: before, to: one}, {from: one, to: one, channel: CHANNEL, fixed: true}]
  next: {agent: a, prompt: "so {{ nodes.play.one.code + 1 }}", max_new_tokens: 3}
edges: [{from: play.one, to: next, channel: cache}]
outputs:
  code: "{{ nodes.play.one.code }}"
  codes: "{{ nodes.play.rounds | map(attribute='one.code') | list }}"
  next: "{{ nodes.next.text }}"
"""


@pytest.mark.parametrize("channel", ["cache", "text"])
def test_in_a_loop_the_value_of_a_round_decides_and_is_read_behind_it(run, channel, tmp_path):
    text = ROUNDS.replace("CHANNEL", channel)
    answers = ['{"code": 7}', '{"code": 5}', '{"code": 2}', '{"code": 0}']
    result, events = run(answers, text=text, store=RunStore.create(tmp_path, "rounds", {}))
    assert result.errors == {}
    assert result.outputs["code"] == 2
    assert result.outputs["codes"] == [7, 5, 2]
    assert [(e.node, e.data["rounds"]) for e in events if e.kind == "loop_ended"] == [("play", 3)]
    again, events = run(answers, text=text, store=RunStore.open(next(tmp_path.iterdir())))
    assert again.outputs == result.outputs
    assert not [e for e in events if e.kind == "node_finished"]


def test_in_a_loop_an_answer_that_does_not_fit_ends_what_depends_on_it(run):
    result, _ = run(
        ['{"code": 7}', '{"code": "x"}', '{"code": 2}', '{"code": 0}'], text=ROUNDS.replace("CHANNEL", "cache")
    )
    assert "no answer that fits its schema" in result.errors["x/play[1]/one"]
    assert result.nodes["play[0]/one"][0].value == {"code": 7}
    assert "x/next" in result.errors
