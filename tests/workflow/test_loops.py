"""Loops: how they are unfolded, what their templates see, and what is said of mistakes in them."""

from __future__ import annotations

import pytest

from agentflow.errors import WorkflowError
from agentflow.workflow import Workflow, parse_workflow, to_mermaid, to_tree
from agentflow.workflow.meaning import Meaning
from agentflow.workflow.templates import render

from .samples import changed, unmarked

LOOP = """\
workflow: react
inputs: {goal: string}
agents: {a: {model: tiny}}
nodes:
  read: {agent: a, prompt: "{{ inputs.goal }}"}
  act:
    when: "inputs.goal != ''"
    loop:
      max: 3
      until: "nodes.actor.text == 'done'"
      nodes:
        think:
          agent: a
          prompt: "{{ nodes.read.text }} {{ nodes.actor.text }}"
        actor:
          agent: a
          prompt: |
            {% for r in rounds %}{{ r.actor.text }} {% endfor %}
            {{ nodes.think.text }} {{ round }}
      edges:
        - {from: think, to: actor}
        - {from: actor, to: actor, channel: cache}
  sum: {agent: a, prompt: "{{ nodes.act.actor.text }} {{ nodes.act.rounds | length }}"}
edges:
  - {from: read, to: act.think, rounds: first}
  - {from: act, to: sum}
outputs: {answer: "{{ nodes.sum.text }}", said: "{{ nodes.act.rounds | map(attribute='think.text') | list }}"}
"""


class Item:
    """What nodes have said so far."""

    def __init__(self, said: dict[str, str], ended: dict[str, int] | None = None) -> None:
        self.inputs, self.values = {"goal": "win"}, {}
        self._said, self._ended = said, ended or {}

    def said(self, node):
        return {"text": self._said[node], "texts": [self._said[node]]} if node in self._said else None

    def rounds_of(self, loop):
        return self._ended.get(loop)


def pairs(workflow: Workflow) -> list[tuple[str, str]]:
    return [(edge.sender, edge.receiver) for edge in workflow.edges]


def prompt(workflow: Workflow, node: str, item: Item) -> str:
    frame, local = workflow.layout.frames[node], workflow.layout.local(node)
    template = workflow.nodes[node].prompt
    return render(template, Meaning(item).context(frame, local, template))


def test_a_loop_is_its_rounds_and_edges_lead_into_them_between_them_and_out_of_the_last():
    workflow = parse_workflow(LOOP)
    rounds = [f"act[{n}]/{name}" for n in range(3) for name in ("think", "actor")]
    assert list(workflow.nodes) == ["read", *rounds, "sum"]
    inside = [(f"act[{n}]/think", f"act[{n}]/actor") for n in range(3)]
    between = [(f"act[{n}]/actor", f"act[{n + 1}]/actor") for n in range(2)]
    assert sorted(pairs(workflow)) == sorted([*inside, *between, ("read", "act[0]/think"), ("act[2]/actor", "sum")])
    assert {edge.channel.name for edge in workflow.edges if edge.sender[:6] != edge.receiver[:6]} == {"cache", "text"}


def test_a_round_waits_for_the_one_before_though_nothing_may_be_sent():
    workflow = parse_workflow(LOOP)
    assert list(workflow.waits_for("act[1]/think")) == ["act[0]/actor"]
    assert list(workflow.waits_for("act[0]/think")) == []


def test_an_edge_into_a_loop_leads_to_every_round_unless_told_otherwise():
    workflow = parse_workflow(changed(", rounds: first", "", LOOP))
    assert [r for s, r in pairs(workflow) if s == "read"] == ["act[0]/think", "act[1]/think", "act[2]/think"]


def test_a_name_is_this_rounds_node_if_it_stands_earlier_and_else_that_of_the_round_before():
    workflow = parse_workflow(LOOP)
    said = {"read": "facts", "act[0]/think": "t0", "act[0]/actor": "a0", "act[1]/think": "t1", "act[1]/actor": "a1"}
    assert prompt(workflow, "act[0]/think", Item({"read": "facts"})) == "facts "  # nothing was said before
    assert prompt(workflow, "act[1]/think", Item(said)) == "facts a0"
    assert prompt(workflow, "act[2]/think", Item(said)) == "facts a1"
    assert prompt(workflow, "act[1]/actor", Item(said)).split() == ["a0", "t1", "1"]
    assert prompt(workflow, "act[0]/actor", Item(said)).split() == ["t0", "0"]


def test_behind_a_loop_its_name_is_the_last_round_and_all_of_them():
    workflow = parse_workflow(LOOP)
    said = {f"act[{n}]/{name}": f"{name}{n}" for n in range(3) for name in ("think", "actor")}
    assert prompt(workflow, "sum", Item(said)) == "actor2 3"
    assert prompt(workflow, "sum", Item(said, {"act": 2})) == "actor1 2"
    top = workflow.layout.top
    context = Meaning(Item(said, {"act": 2})).context(top, None, workflow.outputs["said"])
    assert render(workflow.outputs["said"], context) == "['think0', 'think1']"


def test_loops_may_stand_in_loops():
    inner = """
        plan: {agent: a, prompt: "{{ nodes.tries.act.text }} {{ nodes.tries.rounds | length }}"}
        tries:
          loop:
            max: 2
            nodes: {act: {agent: a, prompt: "{{ nodes.plan.text }} {{ nodes.read.text }} {{ nodes.act.text }}"}}
            edges: [{from: act, to: act}]
      edges: [{from: plan, to: tries}, {from: tries.act, to: plan}]
"""
    head, _, rest = LOOP.partition("        think:\n")
    text = head + inner.lstrip("\n") + "  sum:" + rest.partition("  sum:")[2]
    text = changed("nodes.actor.text == 'done'", "nodes.tries.act.text == 'done'", text)
    text = changed("to: act.think", "to: act", text).replace("nodes.act.actor", "nodes.act.tries.act")
    workflow = parse_workflow(text.replace("attribute='think.text'", "attribute='plan.text'"))
    assert [name for name in workflow.nodes if name.startswith("act[1]")] == [
        "act[1]/plan",
        "act[1]/tries[0]/act",
        "act[1]/tries[1]/act",
    ]
    assert ("act[0]/tries[1]/act", "act[1]/plan") in pairs(workflow)
    assert ("act[2]/tries[1]/act", "sum") in pairs(workflow)
    said = {"read": "r", "act[0]/plan": "p", "act[0]/tries[0]/act": "x", "act[0]/tries[1]/act": "y", "act[1]/plan": "q"}
    assert prompt(workflow, "act[0]/plan", Item(said)) == " 0"
    assert prompt(workflow, "act[1]/plan", Item(said)) == "y 2"
    assert prompt(workflow, "act[1]/plan", Item(said, {"act[0]/tries": 1})) == "x 1"
    assert prompt(workflow, "act[0]/tries[1]/act", Item(said)) == "p r x"
    assert prompt(workflow, "act[1]/tries[0]/act", Item(said)) == "q r "


def test_every_part_of_a_round_knows_where_it_is_written():
    workflow = parse_workflow(LOOP, "loop.yaml")
    assert str(workflow.location(("nodes", "act[2]/think", "prompt"))) == "loop.yaml:14:19"
    numbers = [n for n, edge in enumerate(workflow.edges) if edge.receiver == "act[2]/actor"]
    assert [str(workflow.location(("edges", n))) for n in numbers] == ["loop.yaml:21:11", "loop.yaml:22:11"]


def test_a_name_means_a_node_in_all_rounds_and_a_loop_all_its_nodes():
    workflow = parse_workflow(LOOP)
    assert workflow.members("act[1]/think") == ["act[1]/think"]
    assert workflow.members("act.think") == [f"act[{n}]/think" for n in range(3)]
    assert len(workflow.members("act")) == 6
    assert workflow.members("actor") == []


def test_the_scored_node_may_be_in_a_loop():
    text = LOOP + "task: {name: hotpotqa, answer: act.actor}\n"
    assert parse_workflow(text).task.answer == "act[2]/actor"
    open_end = changed(
        "  - {from: act, to: sum}\n",
        "",
        changed("{{ nodes.act.actor.text }} {{ nodes.act.rounds | length }}", "", text),
    )
    open_end = open_end.replace(", answer: act.actor", "")
    with pytest.raises(WorkflowError, match=r"ends in several nodes \(act.actor, sum\)"):
        parse_workflow(open_end)


MISTAKES = {
    "key": ("      until:", "      «untl:", "nodes.act.loop.untl: unknown key 'untl'. Did you mean 'until'?"),
    "key beside": ("    when: ", "    «wen: ", "unknown key 'wen'. Did you mean 'when'?"),
    "loop misspelt": ("    loop:", "    «lop:", "unknown key 'lop'. Did you mean 'loop'?"),
    "key in body": ("          agent: a\n          prompt: |", "          «agnt: a\n          prompt: |", "'agnt'"),
    "no max": ("      max: 3\n", "", "the key 'max' is missing"),
    "max zero": ("max: 3", "max: «0", "expected a number of at least 1, got 0"),
    "max large": ("max: 3", "max: «1001", "expected a number of at most 1000, got 1001"),
    "max text": ("max: 3", "max: «many", "expected a whole number, got the text 'many'"),
    "until empty": ("until: \"nodes.actor.text == 'done'\"", 'until: «""', "an empty text"),
    "until syntax": ("nodes.actor.text == 'done'", "nodes.actor.text ==", "the expression can't be read"),
    "until node": ("nodes.actor.text == 'done'", "«nodes.acto.text == 'done'", "Did you mean 'actor'?"),
    "when node": ("inputs.goal != ''", "«nodes.think.text == ''", "unknown node 'think'"),
    "agent in body": ("        think:\n          agent: a", "        think:\n          agent: «b", "unknown agent 'b'"),
    "node in body": ("{{ nodes.think.text }}", "{{ «nodes.thnk.text }}", "unknown node 'thnk'"),
    "node of loop": ("{{ nodes.act.actor.text }}", "{{ «nodes.act.actr.text }}", "unknown node 'actr' of 'act'"),
    "round outside": ('prompt: "{{ inputs.goal }}"', 'prompt: "{{ «round }}"', "Only the templates in the body"),
    "bare node in body": ("{{ round }}", "{{ «think }}", "Did you mean 'nodes.think.text'?"),
    "edge in body": ("{from: think, to: actor}", "{from: think, to: «acter}", "Did you mean 'actor'?"),
    "edge out of body": ("{from: think, to: actor}", "{from: think, to: «sum}", "unknown node 'sum'"),
    "edge into body": ("to: act.think", "to: «act.thnk", "unknown node 'thnk' in 'act'. Did you mean 'act.think'?"),
    "edge into node": ("to: act.think", "to: «read.think", "'read' is a plain node, so there is nothing in it"),
    "edge within": ("{from: act, to: sum}", "{from: act.think, to: «act.actor}", "both ends of this edge are in 'act'"),
    "rounds": ("rounds: first", "rounds: «last", "expected one of each, first, got the text 'last'"),
    "rounds of none": ("{from: act, to: sum}", "{from: act, to: sum, «rounds: first}", "'sum' is not in a loop"),
    "channel in body": ("channel: cache", "channel: «[x]", "expected the name of a channel"),
    "second edge": (
        "{from: act, to: sum}",
        "{from: act, to: sum}\n  - «{from: act.actor, to: sum}",
        "edges[1] is the first",
    ),
    "body name": ("        think:\n", "        «rounds:\n", "'rounds' already means the rounds of a loop"),
    "no path": (
        "  - {from: read, to: act.think, rounds: first}\n",
        "",
        "Add an edge from read: `- {from: read, to: act.think}`",
    ),
    "no path out": ("  - {from: act, to: sum}\n", "", "Add an edge from act.actor: `- {from: act.actor, to: sum}`"),
    "cycle": ("{from: act, to: sum}", "«{from: act, to: read}", "the edges form a cycle: read -> act -> read"),
    "several ends": ("        - {from: think, to: actor}\n", "", "Write 'act.think' or 'act.actor'."),
    "all nodes": ("inputs.goal != ''", "nodes | length > 0", "can't look at all of `nodes` here"),
    "waits for later": ("inputs.goal != ''", "nodes.sum.text == ''", "this waits for 'sum', which waits for it"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_loop_is_told_at_its_place(name):
    old, new, fragment = MISTAKES[name]
    text = changed(old, new, LOOP)
    place = ""
    if "«" in text:
        text, place = unmarked(text)
    with pytest.raises(WorkflowError) as caught:
        parse_workflow(text, "flow.yaml")
    told = [str(problem) for problem in caught.value.problems]  # type: ignore[attr-defined]
    assert any(fragment in line and line.startswith(f"flow.yaml:{place}") for line in told), str(caught.value)


def test_what_would_grow_too_large_is_refused_where_it_does():
    text = changed("{from: act, to: sum}", "{from: act.actor, to: sum}", LOOP)
    text = changed(" {{ nodes.act.rounds | length }}", "", text)
    for depth in range(3):
        text = changed(
            "        actor:\n          agent: a\n          prompt: |",
            f"        more{depth}:\n          loop: {{max: 900, nodes: {{x: {{agent: a, prompt: hi}}}}}}\n"
            "        actor:\n          agent: a\n          prompt: |",
            text,
        )
    assert len(parse_workflow(text).nodes) > 2700
    text = changed("max: 3", "max: 30", text)
    with pytest.raises(WorkflowError, match=r"flow.yaml:9:12 – nodes.act.loop.max: too large: unfolded, 'act' makes"):
        parse_workflow(text, "flow.yaml")


def test_what_has_not_run_yet_in_a_round_is_told_in_the_words_of_the_body():
    text = changed("{from: act, to: sum}", "{from: act.actor, to: sum}", LOOP)
    text = changed(" {{ nodes.act.rounds | length }}", "", text)
    text = changed("        - {from: think, to: actor}\n", "", text)
    with pytest.raises(WorkflowError) as caught:
        parse_workflow(text)
    (problem,) = caught.value.problems
    assert str(problem).startswith("<text>:19:16 – nodes.act.loop.nodes.actor.prompt: no edge leads from 'think' to")
    assert problem.fix == "Add an edge from think: `- {from: think, to: actor}`."


def test_a_drawing_folds_rounds_and_leaves_out_what_is_sent_between_them():
    workflow = parse_workflow(LOOP)
    assert to_tree(workflow) == [
        "react",
        "read · a",
        "└─ text → act.think · a, at most 3 rounds",
        "   └─ text → act.actor · a, at most 3 rounds",
        "      └─ text → sum · a",
    ]
    assert to_mermaid(workflow).count("-->") == 3
