"""Comparisons of workflows with loops: every channel and control through all rounds."""

from __future__ import annotations

import pytest

from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.controls import CONTROLS, sender_alone
from agentflow.workflow.loader import parse_workflow

LOOP = """
workflow: rounds
task: {name: private_facts, answer: answer, level: easy, questions: 2}
inputs: {facts: list, questions: list}
agents:
  reader: {model: {source: tests/tiny, model: tiny}, system: remember}
  worker: {model: {source: tests/tiny, model: tiny}, system: answer}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  ask:
    loop:
      max: 3
      until: "round == 1"
      nodes:
        think: {agent: worker, prompt: "think {{ round }} {{ inputs.questions | join(' ') }}", max_new_tokens: 4}
      edges: [{from: think, to: think, channel: cache, fixed: true}]
  answer: {agent: worker, map: {over: inputs.questions, as: q}, prompt: "{{ q }}", max_new_tokens: 5}
edges:
  - {from: read, to: ask.think, rounds: first}
  - {from: ask.think, to: answer}
outputs: {answers: "{{ nodes.answer.texts }}"}
"""
INSIDE = """
workflow: inside
task: {name: private_facts, answer: ask.answer, level: easy, questions: 2}
inputs: {facts: list, questions: list}
agents:
  reader: {model: {source: tests/tiny, model: tiny}, system: remember}
  worker: {model: {source: tests/tiny, model: tiny}, system: answer}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  ask:
    loop:
      max: 3
      until: "round == 1"
      nodes:
        answer: {agent: worker, map: {over: inputs.questions, as: q}, prompt: "{{ round }} {{ q }}", max_new_tokens: 5}
edges: [{from: read, to: ask.answer}]
outputs: {answers: "{{ nodes.ask.answer.texts }}"}
"""


def compared(text, task, engines, channels=("text", "cache")):
    options = CompareOptions(controls=tuple(CONTROLS))
    items = task.items(data=None, limit=2, seed=0)
    found = compare(parse_workflow(text), task, items, list(channels), engines, options=options)
    return {arm.name: found.of(arm.name)[0] for arm in found.arms}


def test_every_channel_and_control_runs_through_the_rounds_of_a_loop(task, engines):
    rows = compared(LOOP, task, engines)
    assert {name: row.error for name, row in rows.items() if row.error} == {}
    text, cache = rows["text"], rows["cache"]
    assert cache.answers == text.answers
    assert cache.nll == pytest.approx(text.nll, abs=1e-4)
    assert cache.kl == pytest.approx(0.0, abs=1e-5)
    # What was read reaches the first round, and the conversation of the last one that ran reaches two answers.
    assert (text.messages, cache.messages) == (3, 3)
    assert cache.bytes > text.bytes > 0
    assert cache.prefilled < text.prefilled
    assert rows["no message"].messages == 0
    for name in ("no message", "zero(cache)", "mismatched(text)", "mismatched(cache)"):
        assert rows[name].kl > 0.0005
    assert rows["mismatched(cache)"].answers == rows["mismatched(text)"].answers


def test_an_answer_in_a_loop_is_that_of_the_round_it_ends_with(task, engines):
    rows = compared(INSIDE, task, engines)
    assert {name: row.error for name, row in rows.items() if row.error} == {}
    text, cache = rows["text"], rows["cache"]
    assert cache.answers == text.answers
    assert cache.nll == pytest.approx(text.nll, abs=1e-4)
    assert (text.messages, cache.messages) == (4, 4)  # of two rounds with two questions
    assert rows["no message"].messages == 0
    assert rows["no message"].prefilled > 0
    assert rows["no message"].kl > 0.001
    assert rows["mismatched(cache)"].kl > 0.001


def test_the_sender_alone_answers_in_every_round():
    alone = sender_alone(parse_workflow(INSIDE))
    assert {alone.nodes[node].agent for node in alone.members("ask.answer")} == {"reader"}
