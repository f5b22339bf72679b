from __future__ import annotations

from typing import Any

import pytest

from agentflow.errors import UserError
from agentflow.workflow import Workflow, parse_workflow, resolve_inputs

TEXT = """\
workflow: asks
inputs:
  question: {type: string, description: what is asked}
  k: {type: integer, default: 3}
  ratio: {type: number, default: null}
  deep: {type: boolean, default: false}
  rows: {type: list, default: []}
  extra: {type: mapping, default: {}}
agents: {a: {model: m}}
nodes: {n: {agent: a, prompt: "{{ inputs.question }}"}}
"""


@pytest.fixture
def workflow() -> Workflow:
    return parse_workflow(TEXT)


def test_defaults_fill_what_is_not_given(workflow: Workflow) -> None:
    assert resolve_inputs(workflow, {"question": "why"}) == {
        "question": "why",
        "k": 3,
        "ratio": None,
        "deep": False,
        "rows": [],
        "extra": {},
    }


def test_given_values_win_and_are_not_converted(workflow: Workflow) -> None:
    given = {"question": "", "k": 0, "ratio": 1, "deep": True, "rows": [1], "extra": {"a": 1}}
    assert resolve_inputs(workflow, given) == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the input 'question' is missing: text (what is asked)."),
        ({"question": 3}, "the input 'question' must be text, got the number 3."),
        ({"question": "a", "k": "3"}, "the input 'k' must be a whole number, got the text '3'."),
        ({"question": "a", "k": True}, "the input 'k' must be a whole number, got true."),
        ({"question": "a", "k": 1.5}, "the input 'k' must be a whole number, got the number 1.5."),
        ({"question": "a", "deep": 1}, "the input 'deep' must be true or false, got the number 1."),
        ({"question": "a", "rows": {}}, "the input 'rows' must be a list, got an empty mapping."),
        ({"question": "a", "extra": []}, "the input 'extra' must be a mapping, got an empty list."),
        ({"qestion": "a"}, "unknown input 'qestion'. Did you mean 'question'?"),
    ],
)
def test_wrong_inputs_are_named(workflow: Workflow, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_inputs(workflow, given)
    assert str(caught.value) == f"inputs of asks: {message}"


def test_every_wrong_input_is_told_at_once(workflow: Workflow) -> None:
    with pytest.raises(UserError) as caught:
        resolve_inputs(workflow, {"k": "x", "zzz": 1})
    assert len(str(caught.value).splitlines()) == 3


def test_a_workflow_without_inputs_says_so() -> None:
    workflow = parse_workflow("workflow: a\nagents: {a: {model: m}}\nnodes: {n: {agent: a, prompt: hi}}\n")
    with pytest.raises(UserError, match="takes no inputs"):
        resolve_inputs(workflow, {"x": 1})


def test_a_default_of_the_wrong_type_is_refused_when_loading() -> None:
    with pytest.raises(UserError, match=r"4:31 – inputs.k.default: the default must be a whole number, got true"):
        parse_workflow(TEXT.replace("default: 3", "default: true"))
