"""Turns prepared ahead: the same results, whatever fails and however a run ends."""

from __future__ import annotations

import _thread
import threading

import pytest
import torch

from agentflow.channels.latent_briefing import LatentBriefingChannel
from agentflow.errors import ChannelError
from agentflow.models.engine import Engine
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Request
from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from tests.tiny import make_engine, tiny_engine, tiny_model, words

BRIEFED = """
workflow: briefed
inputs: {facts: list, questions: list}
agents:
  reader: {model: MODEL, system: remember}
  worker: {model: WORKER, system: answer}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 4}
  ask: {agent: worker, map: {over: inputs.questions, as: q}, prompt: "{{ q }}", max_new_tokens: 12, temperature: 1.2}
  sum: {agent: worker, prompt: "sum up", max_new_tokens: 8}
edges:
  - {from: read, to: ask, channel: {name: latent_briefing, least: 8, sinks: 2}}
  - {from: ask, to: sum, channel: text}
outputs: {answers: "{{ nodes.ask.texts }}", last: "{{ nodes.sum.text }}"}
"""
ITEMS = [
    (f"i{n}", {"facts": [f"the code of room {n} is {n * 7}. "] * (3 + n), "questions": ["what code", "who is in room"]})
    for n in range(8)
]
OTHER = "{source: tests/other, model: other}"


@pytest.fixture
def engines():
    """Two tiny models with stores of their own, that don't stop at random."""

    def make(seed: int) -> Engine:
        model = tiny_model(seed=seed, max_position_embeddings=2048)
        model.generation_config.eos_token_id = None
        return make_engine(model, f"tiny-{seed}")

    one, other = make(0), make(5)
    return EnginePool(factory=lambda spec: other if spec.model == "other" else one)


@pytest.fixture
def run(flow, engines):
    def of(overlap, *, worker="MODEL", batch=3, listeners=(), items=ITEMS, **options):
        workflow = flow(BRIEFED.replace("WORKER", worker))
        chosen = RunOptions(overlap=overlap, max_batch=batch, **options)
        orchestrator = Orchestrator(bind(workflow), engines, options=chosen, listeners=listeners)
        results = orchestrator.run(items)
        assert orchestrator._ahead._made == {}  # nothing is held any more
        return results

    return of


def told(results):
    return [(r.item, r.outputs, r.errors) for r in results]


@pytest.mark.parametrize("worker", ["MODEL", OTHER], ids=["one model", "two models"])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_answers_are_the_same_with_turns_prepared_ahead(run, worker, batch):
    alone = run("off", worker=worker, batch=batch)
    assert told(run("on", worker=worker, batch=batch)) == told(alone)
    assert all(not r.errors for r in alone)


def test_hand_overs_are_made_while_the_model_decodes_and_each_once(run, monkeypatch):
    decoding, beside, sent = threading.Event(), [], []
    decode, send = Engine._decode, LatentBriefingChannel.send

    def slow(self, requests):
        decoding.set()
        try:
            return decode(self, requests)
        finally:
            decoding.clear()

    def watched(self, message, task):
        beside.append(decoding.is_set())
        sent.append(task.prompt)
        return send(self, message, task)

    monkeypatch.setattr(Engine, "_decode", slow)
    monkeypatch.setattr(LatentBriefingChannel, "send", watched)
    run("on")
    assert any(beside)
    assert len(sent) == 2 * len(ITEMS)
    beside.clear()
    run("off")
    assert not any(beside)


def test_on_a_cpu_turns_are_prepared_ahead_only_when_asked(run, monkeypatch):
    threads = set()
    send = LatentBriefingChannel.send
    monkeypatch.setattr(LatentBriefingChannel, "send", lambda *a: threads.add(threading.get_ident()) or send(*a))
    decode = Engine._decode
    monkeypatch.setattr(Engine, "_decode", lambda *a: threads.add(threading.get_ident()) or decode(*a))
    run("auto")
    assert len(threads) == 1


def test_deliveries_that_fail_fail_their_units_alone(run, monkeypatch):
    send = LatentBriefingChannel.send

    def failing(self, message, task):
        if "room 2" in message.turns[1].content:
            raise ChannelError("lost on the way")
        if "room 5" in message.turns[1].content and "who" in task.prompt:
            raise RuntimeError("a bug in a channel")
        return send(self, message, task)

    monkeypatch.setattr(LatentBriefingChannel, "send", failing)
    alone, ahead = run("off"), run("on")
    assert [r.outputs for r in ahead] == [r.outputs for r in alone]
    assert [bool(r.errors) for r in ahead] == [n in (2, 5) for n in range(len(ITEMS))]
    assert "lost on the way" in ahead[2].errors["i2/ask[0]"]
    assert ahead[5].errors["i5/ask[1]"] == "RuntimeError: a bug in a channel"
    assert ahead[5].errors["i5/sum"] == "skipped: 'ask' failed"


def test_cancelling_during_a_preparation_ends_the_run(flow, engines, monkeypatch):
    workflow = flow(BRIEFED.replace("WORKER", "MODEL"))
    orchestrator = Orchestrator(bind(workflow), engines, options=RunOptions(overlap="on", max_batch=2))
    send, sent = LatentBriefingChannel.send, []

    def cancelling(self, message, task):
        sent.append(task.prompt)
        if len(sent) == 4:
            orchestrator.cancel()
        return send(self, message, task)

    monkeypatch.setattr(LatentBriefingChannel, "send", cancelling)
    results = orchestrator.run(ITEMS)
    assert len(sent) == 4  # what had not begun was not begun
    assert "cancelled" in results[-1].errors.values()
    assert all(r.errors or r.outputs for r in results)


def test_ctrl_c_during_a_preparation_is_passed_on_and_leaves_no_thread(flow, engines, monkeypatch):
    send, sent, before = LatentBriefingChannel.send, [], set(threading.enumerate())

    def interrupting(self, message, task):
        sent.append(task.prompt)
        if len(sent) == 3:
            _thread.interrupt_main()
        return send(self, message, task)

    monkeypatch.setattr(LatentBriefingChannel, "send", interrupting)
    with pytest.raises(KeyboardInterrupt):
        Orchestrator(
            bind(flow(BRIEFED.replace("WORKER", "MODEL"))), engines, options=RunOptions(overlap="on", max_batch=2)
        ).run(ITEMS)
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("agentflow")] == []
    assert len(sent) < 2 * len(ITEMS)


def test_two_threads_on_one_engine_give_what_each_gives_alone():
    engine = Engine(tiny_engine("qwen2-yarn").loaded)
    prefix = engine.prefill(words(40, 1))
    requests = [Request(tuple(words(n, n)), prefix, max_new_tokens=30, keep_cache=True) for n in (3, 8, 5)]
    alone = [g.token_ids for g in engine.generate(requests)]
    queries = engine.queries(prefix, words(9, 2))
    wrong, done = [], threading.Event()

    def look():
        while not done.is_set():
            found = engine.queries(prefix, words(9, 2))
            grown = engine.prefill(words(5, 3), prefix)
            wrong.extend(a for a, b in zip(found, queries, strict=True) if not a.equal(b))
            wrong.extend([grown] if len(grown) != 45 else [])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(5):
            assert [g.token_ids for g in engine.generate(requests)] == alone
    finally:
        done.set()
        thread.join()
    assert wrong == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA; run `pytest -m gpu` on a machine with a GPU")
def test_a_gpu_gives_the_same_answers_with_turns_prepared_ahead(flow):
    model = tiny_model(max_position_embeddings=2048).to("cuda")
    model.generation_config.eos_token_id = None
    engine = make_engine(model, "gpu")
    workflow = flow(BRIEFED.replace("WORKER", "MODEL").replace("temperature: 1.2", "temperature: 0.0"))
    found = []
    for overlap in ("off", "auto"):
        pool, options = EnginePool(factory=lambda spec: engine), RunOptions(overlap=overlap, max_batch=3, reuse=False)
        found.append(told(Orchestrator(bind(workflow), pool, options=options).run(ITEMS)))
    assert found[0] == found[1]
