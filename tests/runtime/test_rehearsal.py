"""Dry runs: what would run, what would not, and why, told without a model."""

from __future__ import annotations

import pytest

from agentflow.runtime.binding import bind
from agentflow.runtime.rehearsal import rehearse

FORK = """
workflow: fork
inputs: {n: integer, words: {type: list, default: [red, blue]}}
agents: {a: {model: MODEL}}
nodes:
  read: {agent: a, prompt: read}
  big: {agent: a, prompt: big, when: "inputs.n > 5"}
  more: {agent: a, prompt: "more {{ nodes.big.text }}"}
  each: {agent: a, map: {over: inputs.words}, prompt: "{{ item }}"}
  last: {agent: a, map: {over: "nodes.each.texts"}, prompt: "{{ item }}", when: "nodes.read.text != 'no'"}
edges:
  - {from: read, to: big}
  - {from: big, to: more}
  - {from: read, to: each}
  - {from: each, to: last}
  - {from: read, to: last}
outputs: {}
"""


@pytest.fixture
def told(flow):
    def tell(*changes, until=None, forced=(), **inputs):
        text = FORK
        for change in changes:
            assert change[0] in text
            text = text.replace(*change)
        found = rehearse(
            bind(flow(text)), [("x", {"words": ["red", "blue"], **inputs})], seed=0, until=until, forced=forced
        )
        return {str(f.unit)[2:]: (f.verdict, f.because) for f in found}

    return tell


def test_of_a_new_run_everything_runs_that_the_workflow_does_not_leave_out(told):
    assert told(n=3) == {
        "read": ("runs", "no result yet"),
        "big": ("skipped", "when: inputs.n > 5"),
        "more": ("skipped", "hears nobody: 'big' is skipped"),
        "each[0]": ("runs", "no result yet"),
        "each[1]": ("runs", "no result yet"),
        "last": ("depends", "when: nodes.read.text != 'no'; 'read' decides"),
    }
    assert told(n=6)["more"] == ("runs", "no result yet")


def test_a_list_that_a_node_has_yet_to_give_is_one_unit(told):
    assert told((""", when: "nodes.read.text != 'no'\"""", ""), n=3)["last"] == ("runs", "over a list of 'each'")


def test_a_map_over_nothing_is_no_unit_and_leaves_nobody_out(told):
    found = told((""", when: "nodes.read.text != 'no'\"""", ""), n=3, words=[])
    assert not [unit for unit in found if unit.startswith("each")]
    assert "last" not in found  # its list is empty too


def test_what_would_not_be_asked_for_is_told(told):
    found = told(n=6, until="big")
    assert found["read"][0] == found["big"][0] == "runs"
    assert found["more"] == ("not asked for", "")


def test_a_prompt_that_can_not_be_rendered_is_told_before_it_costs_anything(told):
    found = told(("prompt: big", 'prompt: "{{ inputs.n.missing }}"'), n=6)
    assert found["big"][0] == "fails"
    assert "missing" in found["big"][1]
    assert found["more"] == ("skipped", "'big' fails")
    found = told(("prompt: big", 'on_error: {fallback: x}, prompt: "{{ inputs.n.missing }}"'), n=6)
    assert (found["big"][0], found["more"][0]) == ("fails", "runs")
