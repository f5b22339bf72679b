"""Whole runs on tiny models: answers, maps, failures, batches, stores, cancelling."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from agentflow.errors import WorkflowError
from agentflow.kv.wire import read_payload
from agentflow.runtime.binding import bind
from agentflow.runtime.kept import read_results
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore, read_events
from agentflow.runtime.scheduler import Unit

FAN = """
workflow: fan
inputs: {facts: list, questions: list}
agents:
  reader: {model: MODEL, system: remember}
  worker: {model: MODEL, system: answer}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  ask: {agent: worker, map: {over: inputs.questions, as: q}, prompt: "{{ index }} {{ q }}", max_new_tokens: 6}
  sum: {agent: worker, prompt: "sum up", max_new_tokens: 5}
edges:
  - {from: read, to: ask, channel: cache}
  - {from: ask, to: sum, channel: text}
outputs: {answers: "{{ nodes.ask.texts }}", last: "{{ nodes.sum.text }}"}
"""
INPUTS = {"facts": ["the code is seven", "red is blue"], "questions": ["what code", "what is red", "who"]}


def run(workflow, engines, items=None, **more):
    return Orchestrator(bind(workflow), engines, **more).run(items or [("one", INPUTS)])


def test_cache_and_text_give_the_same_answers(flow, engines):
    alone = RunOptions(reuse=False)
    by_cache = run(flow(FAN), engines, options=alone)[0]
    by_text = run(flow(FAN).with_channel("text"), engines, options=alone)[0]
    assert by_cache.outputs == by_text.outputs
    assert len(by_cache.outputs["answers"]) == 3
    ask, asked = by_cache.nodes["ask"], by_text.nodes["ask"]
    assert [a.prefilled + a.reused for a in ask] == [b.prefilled for b in asked]
    assert all(a.reused > 0 for a in ask)


@pytest.mark.parametrize("batch", [1, 2, 16])
def test_batching_changes_nothing_but_the_number_of_calls(flow, engines, batch):
    items = [(f"i{n}", {**INPUTS, "facts": [f"fact {n}"]}) for n in range(3)]
    wanted = [r.outputs for r in run(flow(FAN), engines, items, options=RunOptions(max_batch=1))]
    assert [r.outputs for r in run(flow(FAN), engines, items, options=RunOptions(max_batch=batch))] == wanted


def test_sampled_runs_are_repeated_by_their_seed(flow, engines):
    hot = flow(FAN.replace("max_new_tokens: 6", "max_new_tokens: 6, temperature: 1.5"))
    first, again, other = (run(hot, engines, options=RunOptions(seed=s))[0].outputs for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_failed_node_skips_its_dependants_and_other_items_go_on(flow, engines):
    long = {**INPUTS, "facts": ["word " * 600]}
    bad, good = run(flow(FAN), engines, [("bad", long), ("good", INPUTS)])
    assert good.errors == {}
    assert good.outputs
    assert "more than the 512 positions" in bad.errors["bad/read"]
    assert bad.errors["bad/ask"] == bad.errors["bad/sum"] == "skipped: 'read' failed"
    assert bad.outputs == {}


def test_a_template_that_fails_at_run_time_fails_its_node_alone(flow, engines):
    broken = flow(FAN.replace("{{ index }} {{ q }}", "{{ q.missing.more }}"))
    result = run(broken, engines)[0]
    assert set(result.errors) == {"one/ask[0]", "one/sum"} or "one/ask[1]" in result.errors


def test_a_map_over_something_else_than_a_list_says_so(flow, engines):
    result = run(flow(FAN.replace("over: inputs.questions", "over: inputs.questions | length")), engines)[0]
    assert "is no list" in result.errors["one/ask"]


def test_a_map_over_an_empty_list_is_done(flow, engines):
    result = run(flow(FAN), engines, [("one", {**INPUTS, "questions": []})])[0]
    assert result.errors == {}
    assert result.outputs["answers"] == []


def test_a_run_is_stored_as_events_and_results(flow, engines, tmp_path):
    store = RunStore.create(tmp_path, "fan", {"seed": 0})
    result = run(flow(FAN), engines, store=store, options=RunOptions(keep_payloads=True, signing_key=b"k"))[0]
    events = read_events(store.folder)
    kinds = [e["kind"] for e in events]
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_finished"
    assert kinds.count("node_finished") == 5
    assert "node_token" not in kinds
    stored = read_results(store.folder)[Unit("one", "ask", 1)]
    assert (stored.unit, stored.result) == (Unit("one", "ask", 1), result.nodes["ask"][1])
    payloads = sorted((store.folder / "payloads").iterdir())
    digests = {e["data"]["digest"] for e in events if e["kind"] == "message" and e["data"]["digest"]}
    assert len(payloads) == len(digests) == 1 + 3  # one shared cache, three texts
    assert {read_payload(p, key=b"k").header.channel for p in payloads} == {"cache", "text"}


def test_the_event_log_holds_no_tensors_and_no_secrets(flow, engines, tmp_path):
    store = RunStore.create(tmp_path, "fan", {})
    run(flow(FAN), engines, store=store, options=RunOptions(keep_payloads=True, signing_key=b"very-secret"))
    text = (store.folder / "events.jsonl").read_text()
    assert "very-secret" not in text
    assert "tensor" not in text
    assert max(map(len, text.splitlines())) < 2_000


def test_with_reuse_a_text_receiver_stands_on_what_its_sender_computed(flow, engines):
    result = run(flow(FAN).with_channel("text"), engines)[0]
    assert all(r.reused > r.prefilled for r in result.nodes["ask"])
    plain = run(flow(FAN).with_channel("text"), engines, options=RunOptions(reuse=False))[0]
    assert result.outputs == plain.outputs
    assert all(r.reused == 0 for r in plain.nodes["ask"])


JOIN = """
workflow: join
inputs: {a: string, b: string, c: string}
agents:
  reader: {model: MODEL, system: remember}
  worker: {model: MODEL, system: answer}
nodes:
  one: {agent: reader, prompt: "{{ inputs.a }}", max_new_tokens: 0}
  two: {agent: reader, prompt: "{{ inputs.b }}", max_new_tokens: 3}
  both: {agent: worker, prompt: "{{ inputs.c }}", max_new_tokens: 6}
  more: {agent: worker, prompt: "and then", max_new_tokens: 6}
edges:
  - {from: one, to: both, channel: {name: cache, drop_sinks: 0, recompute: SHARE}}
  - {from: two, to: both, channel: {name: cache, drop_sinks: 0, recompute: SHARE}}
  - {from: both, to: more, channel: cache}
outputs: {answer: "{{ nodes.both.text }}"}
"""


def test_several_caches_are_joined_and_the_receiver_prefills_its_own_turn_only(flow, engines):
    seen = []
    orchestrator = Orchestrator(bind(flow(JOIN.replace("SHARE", "0.0"))), engines, listeners=[seen.append])
    result = orchestrator.run([("x", {"a": "the code is seven", "b": "red is blue", "c": "what"})])[0]
    assert result.errors == {}
    one, two, both, more = (result.nodes[n][0] for n in ("one", "two", "both", "more"))
    assert both.reused > max(one.prefilled, two.prefilled)
    assert both.prefilled < 40
    assert more.reused >= both.reused + both.prefilled  # the joined conversation goes on as one
    assert more.messages[0].losses == ("2 caches joined, keys re-rotated",)


def test_a_join_that_recomputes_everything_equals_reading_the_texts_in_a_row(flow, engines):
    from agentflow.kv.payload import Turn
    from agentflow.models.chat import conversation, render
    from agentflow.models.requests import Request

    inputs = {"a": "the code is seven", "b": "red is blue", "c": "what"}
    result = run(flow(JOIN.replace("SHARE", "1.0")), engines, [("x", inputs)])[0]
    engine = engines.get(None)
    first = render(engine.tokenizer, conversation("remember", inputs["a"]), reply=False)
    second = (*conversation("remember", inputs["b"]), Turn("assistant", engine_text(engine, inputs["b"])))
    rest = render(engine.tokenizer, conversation("answer", inputs["c"], second), reply=True)
    wanted = engine.generate([Request((*first, *rest), max_new_tokens=6)])[0].text.strip()
    assert result.outputs["answer"] == wanted


def engine_text(engine, prompt):
    from agentflow.models.chat import conversation, render
    from agentflow.models.requests import Request

    ids = render(engine.tokenizer, conversation("remember", prompt), reply=True)
    return engine.generate([Request(tuple(ids), max_new_tokens=3)])[0].text


def test_a_map_can_fan_in_over_caches(flow, engines):
    joined = flow(FAN.replace("to: sum, channel: text", "to: sum, channel: cache"))
    result = run(joined, engines)[0]
    assert result.errors == {}
    assert result.nodes["sum"][0].reused > sum(r.reused for r in result.nodes["ask"]) / 2


def test_messages_are_forgotten_when_their_last_receiver_is_done(flow, engines):
    seen = []
    orchestrator = Orchestrator(bind(flow(FAN)), engines, listeners=[lambda e: seen.append(e.kind)])
    states = {}
    original = orchestrator._item_result
    orchestrator._item_result = lambda state: states.setdefault("one", state) and original(state)
    orchestrator.run([("one", INPUTS)])
    assert states["one"].messages == {}
    assert states["one"].payloads == {}
    assert seen[-1] == "run_finished"


def test_cancelling_ends_a_run_soon_and_says_what_was_not_done(flow, engines):
    slow = flow(FAN.replace("max_new_tokens: 6", "max_new_tokens: 300"))
    orchestrator = Orchestrator(bind(slow), engines)
    threading.Timer(0.3, orchestrator.cancel).start()
    result = orchestrator.run([(f"i{n}", INPUTS) for n in range(20)])
    assert any("cancelled" in e for r in result for e in r.errors.values())


def test_what_a_channel_warns_of_is_an_event_and_stored_with_the_message(flow, engines, tmp_path, monkeypatch):
    from agentflow.channels.text import TextChannel

    send, receive = TextChannel.send, TextChannel.receive
    monkeypatch.setattr(TextChannel, "send", lambda *a: replace(send(*a), warnings=("half of it is lost",)))
    monkeypatch.setattr(TextChannel, "receive", lambda *a: replace(receive(*a), warnings=("read in a hurry",)))
    store = RunStore.create(tmp_path, "fan", {})
    result = run(flow(FAN), engines, store=store)[0]
    warnings = [e for e in read_events(store.folder) if e["kind"] == "warning"]
    assert [(e["node"], e["data"]["sender"]) for e in warnings] == [("sum", "ask")] * 6  # two of each child's message
    assert [e["data"]["text"] for e in warnings[:2]] == ["half of it is lost", "read in a hurry"]
    stored = read_results(store.folder)[Unit("one", "sum")].result
    assert stored == result.nodes["sum"][0]
    assert stored.messages[0].warnings == ("half of it is lost", "read in a hurry")


def test_a_plug_in_that_breaks_fails_its_node_and_not_the_run(flow, engines, monkeypatch):
    from agentflow.channels.text import TextChannel

    def broken(self, message, task):
        raise RuntimeError("a bug in a channel")

    monkeypatch.setattr(TextChannel, "send", broken)
    result = run(flow(FAN), engines)[0]
    assert result.errors == {"one/sum": "RuntimeError: a bug in a channel"}
    assert len(result.nodes["ask"]) == 3


@pytest.mark.parametrize(
    ("change", "place", "what"),
    [
        (("channel: cache", "channel: cach"), "12:36", "unknown channel 'cach'. Did you mean 'cache'?"),
        (("channel: text", "channel: {name: text, scop: answer}"), "13:48", "unknown setting 'scop'"),
        (("channel: text", "channel: {name: text, scope: 3}"), "13:55", "'trajectory' or 'answer', not 3"),
        (("worker: {model: MODEL", "worker: {model: smolm2-135m"), "6:19", "Did you mean 'smollm2-135m'?"),
        (("worker: {model: MODEL", "worker: {model: {source: a/b}"), "12:36", "does not fit read -> ask"),
        (("inputs:", "task: hotpotq\ninputs:"), "3:7", "Unknown task 'hotpotq'"),
    ],
)
def test_misfits_are_found_before_anything_runs(flow, change, place, what):
    with pytest.raises(WorkflowError) as caught:
        bind(flow(FAN.replace(*change)))
    assert what.lower() in str(caught.value).lower()
    assert f":{place} " in str(caught.value)
