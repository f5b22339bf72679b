"""Workflows used as nodes: how they are unfolded, what they are given and give back, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.errors import WorkflowError
from agentflow.workflow import load_workflow
from agentflow.workflow.meaning import Meaning
from agentflow.workflow.templates import evaluate, render

from .samples import changed, unmarked

INNER = """\
workflow: inner
inputs: {question: string, facts: {type: list, default: []}}
defaults: {temperature: 0.5, model: small}
agents: {reader: {system: Read.}, answerer: {top_k: 3}}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}"}
  answer: {agent: answerer, prompt: "{{ inputs.question }}"}
edges: [{from: read, to: answer, channel: cache}]
outputs: {answer: "{{ nodes.answer.text }}", all: "{{ [nodes.read.text, nodes.answer.text] }}"}
task: {name: hotpotqa, answer: answer}
"""
OUTER = """\
workflow: outer
inputs: {question: string}
defaults: {max_new_tokens: 7, model: large}
agents: {reader: {}}
nodes:
  ask: {agent: reader, prompt: "{{ inputs.question }}"}
  sub:
    workflow: inner.yaml
    inputs: {question: "What of {{ nodes.ask.text }}?", facts: [red, blue]}
  last: {agent: reader, prompt: "{{ nodes.sub.answer }}"}
edges:
  - {from: sub, to: last, channel: cache}
outputs: {all: "{{ nodes.sub.all }}"}
"""


class Item:
    def __init__(self, **said):
        self.inputs, self.values, self._said = {"question": "who"}, {}, said

    def said(self, node):
        text = self._said.get(node.replace("/", "_"))
        return None if text is None else {"text": text, "texts": [text]}

    def rounds_of(self, loop):
        return None


@pytest.fixture
def load(tmp_path: Path):
    """Load the outer workflow, or another text in its place."""

    def go(outer: str = OUTER, inner: str = INNER, **more: str):
        for name, text in {"outer": outer, "inner": inner, **more}.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return load_workflow(tmp_path / "outer.yaml")

    return go


def prompt(workflow, node, item):
    frame, local = workflow.layout.frames[node], workflow.layout.local(node)
    template = workflow.nodes[node].prompt
    return render(template, Meaning(item).context(frame, local, template))


def test_its_nodes_take_the_place_of_the_one_that_names_it(load):
    workflow = load()
    assert list(workflow.nodes) == ["ask", "sub/read", "sub/answer", "last"]
    assert sorted((e.sender, e.receiver) for e in workflow.edges) == [
        ("sub/answer", "last"),
        ("sub/read", "sub/answer"),
    ]
    assert list(workflow.waits_for("sub/read")) == ["ask"]  # its inputs look at it
    assert workflow.task is None


def test_it_keeps_its_agents_and_defaults_and_has_those_of_the_outer_file_below_them(load):
    workflow = load()
    assert workflow.nodes["sub/read"].agent == "sub/reader"
    assert workflow.agents["sub/reader"].system == "Read."
    assert (workflow.agents["sub/reader"].model, workflow.agents["reader"].model) == ("small", "large")
    assert workflow.effective("sub/answer").settings == {"max_new_tokens": 7, "temperature": 0.5, "top_k": 3}
    assert workflow.effective("last").settings == {"max_new_tokens": 7}


def test_it_sees_its_inputs_and_is_seen_by_its_outputs(load):
    workflow = load()
    item = Item(ask="Ada", sub_read="r", sub_answer="seven")
    assert prompt(workflow, "sub/answer", item) == "What of Ada?"
    assert prompt(workflow, "sub/read", item) == "red blue"
    assert prompt(workflow, "last", item) == "seven"
    context = Meaning(item).context(workflow.layout.top, None, "nodes.sub.all", is_expression=True)
    assert evaluate("nodes.sub.all", context) == ["r", "seven"]


def test_an_input_of_another_type_than_declared_is_refused_where_it_is_written(load, tmp_path):
    workflow = load(changed("facts: [red, blue]", 'facts: "{{ nodes.ask.text }}"', OUTER))
    with pytest.raises(Exception, match="input 'facts' of 'sub' must be a list, got the text 'Ada'") as caught:
        prompt(workflow, "sub/read", Item(ask="Ada"))
    assert caught.value.where == f"{tmp_path / 'outer.yaml'}:9:64"


def test_places_are_those_of_the_file_that_holds_them(load, tmp_path):
    workflow = load()
    inner = tmp_path / "inner.yaml"
    assert str(workflow.location(("nodes", "sub/read", "prompt"))) == f"{inner}:6:33"
    assert str(workflow.location(("agents", "sub/answerer", "top_k"))) == f"{inner}:4:53"
    number = [e.sender for e in workflow.edges].index("sub/read")
    assert str(workflow.location(("edges", number, "channel"))) == f"{inner}:8:43"
    assert {Path(source.file).name for source in workflow.sources} == {"outer.yaml", "inner.yaml"}


def test_one_may_stand_in_a_loop_and_be_sent_to_by_name(load):
    text = """\
workflow: outer
agents: {a: {model: m}}
nodes:
  play:
    loop:
      max: 2
      nodes:
        ask: {agent: a, prompt: "{{ nodes.sub.answer }}"}
        sub: {workflow: inner, inputs: {question: "{{ nodes.ask.text }} {{ round }}"}}
      edges: [{from: ask, to: sub.answer, channel: cache}, {from: sub, to: ask}]
outputs: {a: "{{ nodes.play.sub.answer }}"}
"""
    workflow = load(text)
    assert len(workflow.nodes) == 6
    sent = [(e.sender, e.receiver) for e in workflow.edges]
    assert ("play[1]/ask", "play[1]/sub/answer") in sent
    assert ("play[0]/sub/answer", "play[1]/ask") in sent
    assert prompt(workflow, "play[0]/ask", Item()) == ""
    assert prompt(workflow, "play[1]/ask", Item(**{"play[0]_sub_answer": "x"})) == "x"
    assert prompt(workflow, "play[1]/sub/answer", Item(**{"play[1]_ask": "y"})) == "y 1"


def test_a_shipped_workflow_can_be_used_by_name(load):
    text = """\
workflow: outer
inputs: {question: string, documents: list}
agents: {}
nodes:
  reading: {workflow: reading, inputs: {question: "{{ inputs.question }}", documents: "{{ inputs.documents }}"}}
outputs: {answer: "{{ nodes.reading.answer }}"}
"""
    assert list(load(text).nodes) == ["reading/read", "reading/answer"]


MISTAKES = {
    "unknown file": ("workflow: inner.yaml", "workflow: «iner.yaml", "there is no workflow 'iner.yaml'"),
    "above": ("workflow: inner.yaml", "workflow: «../inner.yaml", "the path '../inner.yaml' leaves the project"),
    "absolute": ("workflow: inner.yaml", "workflow: «/etc/passwd", "the path '/etc/passwd' leaves the project"),
    "number": ("workflow: inner.yaml", "workflow: «3", "expected text, got the number 3"),
    "key": ('    inputs: {question: "What', '    «input: {question: "What', "Did you mean 'inputs'?"),
    "unknown input": ("facts: [", "«fcts: [", "no input 'fcts'. Did you mean 'facts'?"),
    "missing input": ('question: "What of {{ nodes.ask.text }}?", ', "", "the input 'question' of the workflow"),
    "input type": ("facts: [red, blue]", "facts: «3", "the input must be a list, got the number 3"),
    "input template": ("nodes.ask.text", "«nodes.aks.text", "unknown node 'aks'"),
    "unknown output": ("{{ nodes.sub.answer }}", "{{ «nodes.sub.anser }}", "unknown output 'anser' of 'sub'"),
    "no edge": ("  - {from: sub, to: last, channel: cache}", "  []", "Add an edge from sub.answer"),
    "edge inside": ("{from: sub, to", "{from: «sub.answr, to", "unknown node 'answr' in 'sub'"),
    "waits for itself": ("nodes.ask.text", "nodes.sub.answer", "this waits for 'sub.answer', which waits for it"),
    "waits for later": ("nodes.ask.text", "nodes.last.text", "this waits for 'last', which waits for it"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_at_its_place(load, name):
    old, new, fragment = MISTAKES[name]
    text, place = changed(old, new, OUTER), ""
    if "«" in text:
        text, place = unmarked(text)
    with pytest.raises(WorkflowError) as caught:
        load(text)
    told = [str(problem) for problem in caught.value.problems]
    assert any(fragment in line and f"outer.yaml:{place}" in line.split(" – ")[0] + ":" for line in told), told


def test_a_mistake_in_its_file_is_told_there_and_once(load):
    twice = OUTER.replace("  last:", "  again: {workflow: inner.yaml, inputs: {question: x}}\n  last:")
    with pytest.raises(WorkflowError) as caught:
        load(twice, changed("agent: answerer", "agent: answerr", INNER))
    (problem,) = caught.value.problems
    assert "inner.yaml:7:19 – nodes.answer.agent: unknown agent 'answerr'" in str(problem)


def test_workflows_that_contain_themselves_are_refused_with_the_way_round(load):
    inner = changed("nodes:\n", "nodes:\n  deeper: {workflow: outer.yaml, inputs: {question: x}}\n", INNER)
    with pytest.raises(
        WorkflowError, match=r"contains itself: \S*outer.yaml -> \S*inner.yaml -> \S*outer.yaml"
    ) as caught:
        load(OUTER, inner)
    assert "inner.yaml:6:22 – nodes.deeper.workflow" in str(caught.value)


def test_inputs_that_only_depend_on_themselves_are_refused(load):
    outer = """\
workflow: outer
agents: {}
nodes:
  one: {workflow: inner, inputs: {x: "{{ nodes.two.x }}"}}
  two: {workflow: inner, inputs: {x: "{{ nodes.one.x }}"}}
"""
    inner = """\
workflow: inner
inputs: {x: string}
agents: {a: {model: m}}
nodes: {n: {agent: a, prompt: hi}}
outputs: {x: "{{ inputs.x }}"}
"""
    with pytest.raises(WorkflowError, match="these inputs depend on themselves"):
        load(outer, inner)


def test_workflows_that_use_one_another_often_are_refused_before_they_are_unfolded(load):
    head = "workflow: w\nagents: {a: {model: m}}\nnodes:\n"
    files = {f"w{n}": head + f"  a: {{workflow: w{n + 1}}}\n  b: {{workflow: w{n + 1}}}\n" for n in range(18)}
    with pytest.raises(WorkflowError, match=r"too large: unfolded, '.' makes .* more than 50,000"):
        load(head + "  a: {workflow: w0}\n", w18=head + "  a: {agent: a, prompt: hi}\n", **files)
