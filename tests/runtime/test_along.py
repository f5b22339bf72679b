"""Receivers that read the sender's conversation themselves read it while the sender answers."""

from __future__ import annotations

import threading

import pytest

from agentflow.channels.base import Channel
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.workflow.loader import parse_workflow
from tests.adapters.samples import bundle_of
from tests.tiny import make_engine, tiny_model

FLOW = """
workflow: fused
inputs: {facts: list}
agents:
  reader: {model: {source: tests/one, model: one}, system: remember}
  answerer: {model: {source: tests/two, model: two}}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 4}
  answer: {agent: answerer, prompt: "what code?", max_new_tokens: 6WHEN}
edges:
  - {from: read, to: answer, channel: c2c}
outputs: {answer: "{{ nodes.answer.text }}"}
"""
ITEMS = [(f"i{n}", {"facts": [f"the code of room {n} is seven"] * (n + 1)}) for n in range(3)]
PATIENCE = 20.0


@pytest.fixture
def pair(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))
    one, two = tiny_model("llama"), tiny_model("qwen2")
    one.generation_config.eos_token_id = None
    found = make_engine(one, "one"), make_engine(two, "two")
    bundle_of(tmp_path / "cache" / "adapters" / "pair", *found)
    return found


def run(pair, overlap, *, when="", listeners=()):
    engines = EnginePool()
    binding = bind(parse_workflow(FLOW.replace("WHEN", when)))
    for spec, engine in zip(binding.models.values(), pair, strict=True):
        engines.add(spec, engine)
    return Orchestrator(binding, engines, options=RunOptions(overlap=overlap), listeners=listeners).run(ITEMS)


def test_both_models_are_at_work_at_once(pair, monkeypatch):
    """The sender answers only when the receiver has read what the sender is asked: one after the other would hang."""
    sender, receiver = pair
    read = threading.Semaphore(0)
    prefill, generate, in_time = receiver.prefill, sender.generate, []

    def watched(*args, **more):
        found = prefill(*args, **more)
        read.release()
        return found

    def patient(requests):
        in_time.extend(read.acquire(timeout=PATIENCE) for _ in requests)
        return generate(requests)

    monkeypatch.setattr(receiver, "prefill", watched)
    monkeypatch.setattr(sender, "generate", patient)
    found = run(pair, "on")
    assert not any(item.errors for item in found)
    assert in_time == [True] * len(ITEMS)


def test_what_was_read_along_is_not_computed_again_and_answers_are_the_same(pair):
    alone = run(pair, "off")
    pair[1].prefixes.clear()
    along = run(pair, "on")
    assert [item.outputs for item in along] == [item.outputs for item in alone]
    for item in along:
        (message,) = item.nodes["answer"][0].messages
        assert message.stats["own_tokens"] < 12, "the sender's answer and what its template puts around it"
    (message,) = alone[-1].nodes["answer"][0].messages
    assert message.stats["own_tokens"] > 30


@pytest.mark.parametrize(
    ("overlap", "when"),
    [("auto", ""), ("off", ""), ("on", ", when: 'false'")],
    ids=["one device", "off", "may not run"],
)
def test_nothing_is_read_along_where_it_could_be_in_vain_or_in_the_way(pair, monkeypatch, overlap, when):
    read = []
    monkeypatch.setattr(Channel, "read_along", lambda *_: read.append(1))
    for kind in Channel.__subclasses__():
        monkeypatch.setattr(kind, "read_along", lambda *_: read.append(1))
    run(pair, overlap, when=when)
    assert not read
    if not when:
        run(pair, "on")
        assert len(read) == len(ITEMS)


def test_a_reading_that_fails_is_met_again_where_it_can_be_told(pair, monkeypatch):
    kept = pair[1].prefill

    def broken(*args, **more):
        if threading.current_thread() is not threading.main_thread() and not told:
            told.append(1)
            raise RuntimeError("no memory")
        return kept(*args, **more)

    told = []
    monkeypatch.setattr(pair[1], "prefill", broken)
    assert not any(item.errors for item in run(pair, "on"))
    assert told
