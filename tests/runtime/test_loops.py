"""Loops and sub-workflows at work: what is sent between rounds and out of a loop, how one ends, what is computed."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from agentflow.channels import text as text_module
from agentflow.channels.text import TextChannel
from agentflow.errors import UserError
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.kept import read_results
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.rehearsal import rehearse
from agentflow.runtime.runs import RunStore
from tests.tiny import make_engine, tiny_model

LOOP = """
workflow: loop
inputs: {most: {type: integer, default: 2}, go: {type: boolean, default: true}}
agents: {a: {model: MODEL, max_new_tokens: 4}}
nodes:
  read: {agent: a, prompt: "the code of room is seven"}
  act:
    when: inputs.go
    loop:
      max: 4
      until: "round + 1 == inputs.most"
      nodes:
        think: {agent: a, prompt: "think {{ round }} {{ nodes.actor.text }}"}
        actor: {agent: a, prompt: "act {{ nodes.think.text }} {{ rounds | length }}"}
      edges:
        - {from: think, to: actor, channel: {name: text, scope: answer}}
        - {from: actor, to: actor, channel: OWN}
  sum: {agent: a, prompt: "sum {{ nodes.act.actor.text }}"}
edges:
  - {from: read, to: act.actor, channel: cache, rounds: first}
  - {from: act.actor, to: sum, channel: OUT}
outputs: {sum: "{{ nodes.sum.text }}", rounds: "{{ nodes.act.rounds | length }}"}
"""


def loop(own, out="cache"):
    return LOOP.replace("OWN", own).replace("OUT", out)


def fresh():
    """Engines that have computed nothing yet."""
    engine = make_engine(tiny_model("llama", max_position_embeddings=4096), "tiny")
    return EnginePool(factory=lambda spec: engine)


@pytest.fixture
def run(flow):
    """Run a workflow once; the result, and its events."""

    def go(text=LOOP, *, own="cache", out="cache", engines=None, **more):
        inputs = more.pop("inputs", {"most": 2, "go": True})
        events = []
        text = text.replace("OWN", own).replace("OUT", out)
        runner = Orchestrator(bind(flow(text)), engines or fresh(), listeners=[events.append], **more)
        return runner.run([("x", inputs)])[0], events

    return go


def test_a_loop_ends_when_its_condition_holds_and_its_last_round_is_sent_on(run):
    result, events = run()
    assert result.errors == {}
    assert result.skipped == {}
    assert [n for n in result.nodes if n.startswith("act")] == [
        "act[0]/think",
        "act[0]/actor",
        "act[1]/think",
        "act[1]/actor",
    ]
    assert [m.sender for m in result.nodes["sum"][0].messages] == ["act[1]/actor"]
    assert result.outputs["rounds"] == 2
    assert result.answers("act[3]/actor") == result.answers("act[1]/actor")
    ends = [(e.node, e.data) for e in events if e.kind == "loop_ended"]
    assert ends == [("act", {"rounds": 2, "of": 4})]
    assert not [e for e in events if e.kind == "node_skipped"]


def test_a_loop_whose_condition_never_holds_takes_all_its_rounds(run):
    result, events = run(inputs={"most": 9, "go": True})
    assert result.outputs["rounds"] == 4
    assert [m.sender for m in result.nodes["sum"][0].messages] == ["act[3]/actor"]
    assert not [e for e in events if e.kind == "loop_ended"]


def test_a_loop_that_is_not_wanted_is_left_out_with_what_hears_nobody_else(run):
    result, _ = run(inputs={"most": 2, "go": False})
    assert result.errors == {}
    assert not any(result.nodes[n] for n in result.nodes if n != "read")
    assert result.skipped["x/act[0]/think"] == "when: inputs.go"
    assert "x/sum" in result.skipped


@pytest.mark.parametrize("reuse", [True, False])
def test_over_cache_an_agent_goes_on_with_its_trajectory_and_computes_its_new_turn_only(run, reuse):
    result, _ = run(inputs={"most": 4, "go": True}, options=RunOptions(reuse=reuse))
    turns = [result.nodes[f"act[{n}]/actor"][0] for n in range(4)]
    assert [t.messages[-1].sender for t in turns] == ["read", *(f"act[{n}]/actor" for n in range(3))]
    for before, after in pairwise(turns):
        whole = before.prefilled + before.reused + before.generated
        assert after.reused >= whole - 2  # all but the end of the turn that was still open
        assert after.prefilled < turns[0].prefilled + 40


def test_over_text_the_same_is_said_and_the_prefix_store_saves_the_same(run):
    over_cache, _ = run(inputs={"most": 3, "go": True})
    over_text, _ = run(own="text", inputs={"most": 3, "go": True})
    apart, _ = run(own="text", inputs={"most": 3, "go": True}, options=RunOptions(reuse=False))
    said = [[r.text for r in one.nodes["act[2]/actor"]] for one in (over_cache, over_text, apart)]
    assert said[0] == said[1] == said[2]
    last = over_text.nodes["act[2]/actor"][0]
    assert last.prefilled < 60 < last.reused
    assert apart.nodes["act[2]/actor"][0].reused == 0


def test_a_prompt_that_grows_from_round_to_round_is_not_computed_again(run):
    text = """
workflow: growing
agents: {a: {model: MODEL, max_new_tokens: 4}}
nodes:
  act:
    loop:
      max: 5
      nodes:
        actor:
          agent: a
          prompt: |
            Remember the rules of the room: red is green and green is blue, answer the question with one word.
            {% for r in rounds %}
            > {{ r.actor.text }}
            {% endfor %}
            >
outputs: {said: "{{ nodes.act.rounds | map(attribute='actor.text') | list }}"}
"""
    result, _ = run(text)
    turns = [result.nodes[f"act[{n}]/actor"][0] for n in range(5)]
    first = turns[0].prefilled
    assert first > 50
    for turn in turns[1:]:
        assert turn.prefilled < 40
        assert turn.reused > first - 20
    assert len(result.outputs["said"]) == 5


def test_latent_briefing_from_round_to_round_compacts_what_is_left_and_says_so(run):
    result, _ = run(own="{name: latent_briefing, least: 8}", inputs={"most": 3, "go": True})
    assert result.errors == {}
    for n in (1, 2):
        (message,) = [m for m in result.nodes[f"act[{n}]/actor"][0].messages if m.channel == "latent_briefing"]
        assert 8 <= message.kept < message.tokens
        assert any("positions kept" in loss for loss in message.losses)


def test_who_speaks_in_a_loop_is_called_by_the_same_name_in_every_round(run, monkeypatch):
    heard = []
    as_note = text_module.as_note
    monkeypatch.setattr(text_module, "as_note", lambda payload: heard.append(payload.header.sender) or as_note(payload))
    result, _ = run(own="{name: text, scope: answer}", inputs={"most": 3, "go": True})
    assert [m.sender for m in result.nodes["act[2]/actor"][0].messages] == ["act[2]/think", "act[1]/actor"]
    assert heard == ["think", "think", "actor", "think", "actor"]


def test_messages_of_past_rounds_are_let_go(run, monkeypatch):
    held = []
    receive = TextChannel.receive

    def spy(self, payload, receiver):
        held.append(len(states[0].messages))
        return receive(self, payload, receiver)

    monkeypatch.setattr(TextChannel, "receive", spy)
    states = []
    from agentflow.runtime import orchestrator

    made = orchestrator.ItemState

    def remember(*args, **more):
        states.append(made(*args, **more))
        return states[-1]

    monkeypatch.setattr(orchestrator, "ItemState", remember)
    run(inputs={"most": 4, "go": True})
    assert len(held) == 4
    assert max(held) <= 3
    assert states[0].messages == {}


def test_a_thousand_rounds_that_are_not_needed_cost_little_and_say_little(run):
    import time

    text = LOOP.replace("max: 4", "max: 1000")
    begin = time.perf_counter()
    result, events = run(text)
    assert result.outputs["rounds"] == 2
    assert len(events) < 60
    assert len(result.skipped) == 0
    assert time.perf_counter() - begin < 60


def test_a_failure_in_a_round_is_told_once_for_each_node_that_depends_on_it(run):
    text = LOOP.replace('"act {{ nodes.think.text }} {{ rounds | length }}"', '"{{ [1][round] }}"').replace(
        "max: 4", "max: 200"
    )
    result, events = run(text)
    assert set(result.errors) == {"x/act[1]/actor", "x/act[2]/think", "x/act[2]/actor", "x/sum"}
    assert "there is no '1' in a list of 1" in result.errors["x/act[1]/actor"]
    assert len(events) < 60


def test_a_condition_that_is_neither_true_nor_false_is_an_error_at_its_place(run):
    result, _ = run(LOOP.replace("round + 1 == inputs.most", "round"))
    assert "`until` gave 0, which is neither true nor false" in result.errors["x/act[1]/think"]
    assert "<text>:11:14" in result.errors["x/act[1]/think"]


def test_until_a_node_in_a_loop_runs_what_leads_to_it(run):
    result, _ = run(options=RunOptions(until="act"))
    assert "sum" not in result.nodes
    assert "act[1]/actor" in result.nodes
    with pytest.raises(UserError, match=r"no node 'act.actr' to run until. Did you mean 'act.actor'?"):
        run(options=RunOptions(until="act.actr"))


@pytest.mark.parametrize("own", ["cache", "text", "{name: latent_briefing, least: 8}"])
def test_a_loop_resumes_in_the_middle_to_the_same_end(run, flow, tmp_path, own):
    inputs = {"most": 3, "go": True}
    whole, _ = run(own=own, inputs=inputs, store=RunStore.create(tmp_path, "loop", {}))
    (folder,) = tmp_path.iterdir()
    log = folder / "results.jsonl"
    wanted = {unit: record.answer for unit, record in read_results(folder).items()}
    assert len(wanted) == 8
    for gone in (["sum"], ["act[2]/actor", "sum"], ["act[1]/actor", "act[2]/think", "act[2]/actor", "sum"]):
        kept = [line for line in log.read_text().splitlines() if json.loads(line)["node"] not in gone]
        log.write_text("".join(f"{line}\n" for line in kept))
        told = rehearse(bind(flow(loop(own))), [("x", inputs)], seed=0, stored=read_results(folder))
        assert [f.unit.node for f in told if f.verdict == "runs"][:1] == gone[:1]
        assert {f.unit.node for f in told if f.verdict == "done"} <= {unit.node for unit in wanted} - set(gone)
        again, events = run(own=own, inputs=inputs, store=RunStore.open(folder))
        assert [e.node for e in events if e.kind == "node_finished"] == gone
        assert again.outputs == whole.outputs
        assert {unit: record.answer for unit, record in read_results(folder).items()} == wanted


def test_a_forced_node_of_a_loop_runs_in_every_round_and_what_hears_the_same_does_not(run, flow, tmp_path):
    inputs = {"most": 3, "go": True}
    whole, _ = run(inputs=inputs, store=RunStore.create(tmp_path, "loop", {}))
    (folder,) = tmp_path.iterdir()
    forced = bind(flow(loop("cache"))).workflow.members("act.think")
    assert len(forced) == 4  # of rounds that are not needed as well
    told = rehearse(bind(flow(loop("cache"))), [("x", inputs)], seed=0, stored=read_results(folder), forced=forced)
    verdicts = {f.unit.node: f.verdict for f in told}
    assert [node for node, verdict in verdicts.items() if verdict == "runs"] == [f"act[{n}]/think" for n in range(3)]
    assert verdicts["read"] == "done"
    again, events = run(inputs=inputs, store=RunStore.open(folder, forced=forced))
    assert [e.node for e in events if e.kind == "node_finished"] == [f"act[{n}]/think" for n in range(3)]
    assert [e.node for e in events if e.kind == "node_reused"] == [
        "read",
        *(f"act[{n}]/actor" for n in range(3)),
        "sum",
    ]
    assert again.outputs == whole.outputs


def test_a_dry_run_tells_of_the_rounds_that_are_known_and_what_decides_on_the_others(flow):
    told = rehearse(bind(flow(loop("cache"))), [("x", {"most": 2, "go": True})], seed=0)
    verdicts = {f.unit.node: (f.verdict, f.because) for f in told}
    assert verdicts["act[0]/actor"][0] == "runs"
    assert verdicts["act[1]/think"][0] == "runs"  # `until` looks at no node
    assert "act[2]/think" not in verdicts
    decided = loop("cache").replace("round + 1 == inputs.most", "nodes.actor.text == 'stop'")
    told = rehearse(bind(flow(decided)), [("x", {"most": 2, "go": True})], seed=0)
    verdicts = {f.unit.node: (f.verdict, f.because) for f in told}
    assert verdicts["act[1]/think"] == ("depends", "until: nodes.actor.text == 'stop'; 'act[0]/actor' decides")


def test_loops_in_loops_and_sub_workflows_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner.yaml").write_text(
        LOOP.replace("MODEL", "{source: tests/tiny, model: tiny}").replace("OWN", "cache").replace("OUT", "cache")
    )
    text = """
workflow: outer
agents: {a: {model: MODEL, max_new_tokens: 3}}
nodes:
  rounds_of:
    loop:
      max: 3
      until: "round == 1"
      nodes:
        ask: {agent: a, prompt: "who {{ nodes.sub.sum }} {{ nodes.sub.rounds }}"}
        sub: {workflow: inner.yaml, inputs: {most: "{{ round + 1 }}"}}
      edges: [{from: ask, to: sub.read, channel: cache}, {from: sub, to: ask, channel: cache}]
  end: {agent: a, prompt: "{{ nodes.rounds_of.sub.sum }}"}
edges: [{from: rounds_of, to: end, channel: cache}]
outputs: {rounds: "{{ nodes.rounds_of.rounds | map(attribute='sub.rounds') | list }}", end: "{{ nodes.end.text }}"}
"""
    result, _ = run(text)
    assert result.errors == {}
    assert result.outputs["rounds"] == [1, 2]
    assert [m.sender for m in result.nodes["end"][0].messages] == ["rounds_of[1]/sub/sum"]
    assert [m.sender for m in result.nodes["rounds_of[1]/sub/sum"][0].messages] == ["rounds_of[1]/sub/act[1]/actor"]


MAP = """
workflow: crowd
agents: {a: {model: MODEL, max_new_tokens: 2}}
nodes:
  ask: {agent: a, map: {over: [a, b, c, d, e, f, g], max_concurrency: 3}, prompt: "{{ item }}"}
outputs: {said: "{{ nodes.ask.texts }}"}
"""


def test_a_map_has_no_more_elements_under_way_than_it_allows(run):
    result, events = run(MAP, options=RunOptions(max_batch=16))
    at_work, most = 0, 0
    for event in events:
        at_work += (event.kind == "node_started") - (event.kind == "node_finished")
        most = max(most, at_work)
    assert most == 3
    everything, _ = run(MAP.replace(", max_concurrency: 3", ""), options=RunOptions(max_batch=16))
    assert len(result.outputs["said"]) == 7
    assert result.outputs == everything.outputs
