from __future__ import annotations

import time

from agentflow.workflow import ChannelSpec, parse_workflow, to_mermaid, to_tree

from .samples import GOOD
from .test_graph import chain


def test_mermaid_shows_agents_channels_and_maps() -> None:
    assert to_mermaid(parse_workflow(GOOD)) == (
        "flowchart TD\n"
        '  n0["read<br/>reader"]\n'
        '  n1["answer<br/>answerer"]\n'
        '  n2[["each<br/>answerer"]]\n'
        '  n0 -->|"latent_briefing"| n1\n'
        '  n0 -->|"cache"| n2\n'
    )


def test_mermaid_labels_are_escaped() -> None:
    workflow = parse_workflow(GOOD).with_channel(ChannelSpec.of('x"]; click <b>#|'))
    drawn = to_mermaid(workflow)
    assert 'x"' not in drawn
    assert "<b>" not in drawn
    assert "x#34;#93;#59; click #60;b#62;#35;#124;" in drawn


def test_mermaid_words_of_its_own_are_no_trouble_as_names() -> None:
    text = "workflow: a\nagents: {end: {model: m}}\nnodes: {end: {agent: end, prompt: hi}}\n"
    assert '  n0["end<br/>end"]\n' in to_mermaid(parse_workflow(text))


def test_the_tree_names_nodes_agents_channels_and_maps() -> None:
    assert to_tree(parse_workflow(GOOD)) == [
        "demo",
        "read · reader",
        "├─ latent_briefing → answer · answerer",
        "└─ cache → each · answerer × inputs.documents",
    ]


def test_a_node_with_several_senders_is_drawn_out_once() -> None:
    text = "workflow: a\nagents: {x: {model: m}}\nnodes:\n"
    text += "".join(f"  {name}: {{agent: x, prompt: hi}}\n" for name in "abcd")
    text += "edges:\n" + "".join(f"  - {{from: {p[0]}, to: {p[1]}}}\n" for p in ("ac", "bc", "cd"))
    assert to_tree(parse_workflow(text)) == [
        "a",
        "a · x",
        "└─ text → c · x",
        "   └─ text → d · x",
        "b · x",
        "└─ text → c · x (above)",
    ]


def test_drawings_of_large_workflows_stay_linear() -> None:
    workflow = chain(10_000)
    begin = time.monotonic()
    lines = to_tree(workflow)
    assert sum(map(len, lines)) < 2_000_000
    assert all(any(f"n{i} " in line for line in lines[i : i + 400]) for i in range(0, 10_000, 997))
    assert to_mermaid(workflow).count("\n") == 20_000
    assert time.monotonic() - begin < 10
