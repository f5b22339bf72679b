"""Latent Cache Flow between tiny models of two families: where each variant is found, what crosses, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentflow.adapters.base import make_adapter
from agentflow.adapters.bundle import open_bundle, save_bundle
from agentflow.adapters.card import End
from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.errors import AdapterError, PayloadError
from agentflow.kv.payload import Turn
from agentflow.kv.wire import read_payload, write_payload
from agentflow.models.chat import anchor, conversation, render, reply_frame
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Request
from agentflow.runtime.agent import deliver, plan_turn
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.workflow.fields import Generation
from agentflow.workflow.loader import parse_workflow
from tests.adapters.samples import randomised
from tests.adapters.test_lcf import SMALL
from tests.tiny import tiny_engine

TURNS = (Turn("user", "the code of room nine is seven two four one"),)
PROMPT = "what is the code?"
WITHOUT_TEXT = ["mapped", "slots", "pooled", "delta"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pair(tmp_path):
    ends = tiny_engine("llama"), tiny_engine("qwen2")
    for name, arguments in SMALL.items():
        made = make_adapter(name, *(e.fingerprint.geometry for e in ends), arguments)
        folder = tmp_path / "cache" / "adapters" / name
        save_bundle(folder, randomised(made, scale=0.2), *(End.of(e.loaded) for e in ends))
    return ends


def message(engine, turns=TURNS, name="read"):
    ids = tuple(render(engine.tokenizer, turns, reply=False))
    return Message(name, turns, turns[-1].content, ids, engine.prefill(ids), engine)


def turn(receiver, deliveries, prompt=PROMPT, reuse=False, history=()):
    return plan_turn(
        receiver,
        system="",
        prompt=prompt,
        deliveries=deliveries,
        settings=Generation(max_new_tokens=6),
        seed=0,
        keep_cache=True,
        reuse=reuse,
        cancelled=lambda: False,
    )


def over(sender, receiver, variant, turns=TURNS, name="read", **settings):
    channel = make_channel("lcf", {"variant": variant, **settings})
    return deliver(channel, message(sender, turns, name), Task(PROMPT, "", receiver))


def adapter_of(tmp_path, variant):
    return open_bundle(tmp_path / "cache" / "adapters" / f"lcf_{variant}").load()


def by_hand(sender, receiver, adapter, own, asked):
    """The answer of a receiver whose cache of `own` the adapter has changed, `asked` behind it."""
    theirs = sender.prefill(render(sender.tokenizer, TURNS, reply=False))
    cache = receiver.prefill(own)
    partners = torch.full((len(own),), -1)
    ropes = sender.loaded.ropes, receiver.loaded.ropes
    cache = adapter.decode(adapter.encode(theirs, ropes[0]), cache, ropes[1], partners)
    return receiver.generate([Request(tuple(asked), cache, max_new_tokens=6)])[0].token_ids


@pytest.mark.parametrize("variant", ["mapped", "slots"])
def test_a_message_of_its_own_positions_stands_before_the_receivers_conversation(pair, tmp_path, variant):
    sender, receiver = pair
    payload, delivery = over(*pair, variant)
    assert delivery.context.turns == ()
    assert delivery.context.head == delivery.context.cache.next_position
    plan = turn(receiver, [delivery])
    ids = render(receiver.tokenizer, conversation("", PROMPT), reply=True)
    assert list(plan.request.token_ids) == ids
    expected = by_hand(sender, receiver, adapter_of(tmp_path, variant), anchor(receiver.tokenizer), ids)
    assert receiver.generate([plan.request])[0].token_ids == expected
    assert not plan.foundation.exact
    sent = 3 if variant == "slots" else len(message(sender).cache) - 1
    assert (payload.header.kept, payload.header.tokens) == (sent, len(message(sender).cache))
    assert delivery.result.stats["adapt_seconds"] > 0


@pytest.mark.parametrize("variant", ["pooled", "delta"])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_message_for_the_receivers_turn_changes_its_cache_up_to_where_it_answers(pair, tmp_path, variant, reuse):
    sender, receiver = pair
    receiver.prefixes.clear()
    settings = {} if variant == "pooled" else {"bits": 16}
    for _ in range(2):  # with `reuse`, the second time its own tokens are all computed
        _, delivery = over(*pair, variant, **settings)
        plan = turn(receiver, [delivery], reuse=reuse)
        before, opening = reply_frame(receiver.tokenizer, conversation("", PROMPT))
        expected = by_hand(sender, receiver, adapter_of(tmp_path, variant), before, opening)
        assert receiver.generate([plan.request])[0].token_ids == expected
        assert plan.deliveries[0].result.stats["adapt_seconds"] > 0
        assert plan.request.token_ids == opening
        receiver.prefixes.add((*before, *opening), receiver.prefill((*before, *opening)))
    assert not plan.foundation.exact
    alone = turn(receiver, [], reuse=reuse)
    assert alone.request.prefix is None or alone.request.prefix.values[0] is not plan.request.prefix.values[0]


@pytest.mark.parametrize("variant", WITHOUT_TEXT)
def test_no_word_travels(pair, variant):
    payload, _ = over(*pair, variant)
    assert not {"turns", "spans", "places"} & {*payload.body.settings, *payload.body.tensors}
    assert "seven" not in str(payload.body.settings)


def test_aligned_sends_its_text_as_c2c_does(pair):
    payload, delivery = over(*pair, "aligned")
    assert delivery.context.turns == TURNS
    assert delivery.context.base is not None
    assert payload.nbytes < message(pair[0]).cache.nbytes + 2000


def test_several_messages_stand_behind_one_another_and_before_a_conversation(pair):
    receiver = pair[1]
    first = over(*pair, "mapped")[1]
    second = over(*pair, "mapped", turns=(Turn("user", "the room is red"),), name="second")[1]
    plan = turn(receiver, [first, second])
    anchored = len(anchor(receiver.tokenizer))
    lengths = [len(d.context.cache) for d in (first, second)]
    assert len(plan.request.prefix) == sum(lengths) - anchored
    assert plan.request.prefix.rotary_positions.tolist() == sorted(plan.request.prefix.rotary_positions.tolist())
    _, spoken = deliver(
        make_channel("text"), message(receiver, (Turn("user", "hello there"),), "talk"), Task(PROMPT, "", receiver)
    )
    mixed = turn(receiver, [spoken, first])
    told = "".join(t.content for t in mixed.turns)
    assert told.startswith("hello there")
    assert len(mixed.request.prefix) == lengths[0]


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("variant", ["mapped", "delta"])
def test_fewer_bits_are_fewer_bytes_and_nearly_the_same_message(pair, variant, bits):
    whole, exact = over(*pair, variant, bits=16)
    small, _ = over(*pair, variant, bits=bits)
    assert small.nbytes <= whole.nbytes
    assert any(f"{bits} bits" in loss for loss in small.header.losses)
    if variant == "mapped":
        found = make_channel("lcf", {"variant": variant}).receive(small, pair[1]).cache
        scale = max(float(k.abs().max()) for k in exact.context.cache.keys)
        worst = max(float((a - b).abs().max()) for a, b in zip(found.keys, exact.context.cache.keys, strict=True))
        assert worst < {4: 0.5, 8: 0.05, 16: 0.01}[bits] * scale


def test_a_message_that_went_through_a_file_needs_the_bundle_and_not_the_senders_model(pair, tmp_path):
    payload, direct = over(*pair, "slots", bits=4)
    write_payload(payload, tmp_path / "p.safetensors", key=b"k")
    stored = make_channel("lcf", {"variant": "slots"}).receive(
        read_payload(tmp_path / "p.safetensors", key=b"k"), pair[1]
    )
    for a, b in zip(stored.cache.keys, direct.context.cache.keys, strict=True):
        assert torch.equal(a, b)


def test_damaged_messages_are_refused(pair):
    payload, _ = over(*pair, "mapped", bits=4)
    channel, receiver = make_channel("lcf", {"variant": "mapped"}), pair[1]

    def changed(tensors=payload.body.tensors, **settings):
        body = replace(payload.body, tensors=tensors, settings={**payload.body.settings, **settings})
        return replace(payload, body=body)

    for wrong in (
        changed(bits=3),
        changed(bits=[]),
        changed(widths={}),
        changed(widths=7),
        changed({}),
        changed(widths={"layers.0": 1}),
        changed(turns=[{"role": "user", "content": "x"}]),
    ):
        with pytest.raises((PayloadError, AdapterError)):
            channel.receive(wrong, receiver)
    text, _ = over(*pair, "aligned")
    bare = replace(text, body=replace(text.body, settings={"source": text.body.settings["source"]}))
    with pytest.raises(PayloadError, match="comes without its text"):
        make_channel("lcf", {"variant": "aligned"}).receive(bare, receiver)


@pytest.mark.parametrize("variant", ["mapped", "slots", "aligned", "pooled", "delta"])
def test_a_workflow_runs_over_every_variant_and_says_so(pair, variant):
    workflow = parse_workflow(
        f"""
        workflow: w
        agents:
          a: {{model: {{model: a, source: tests/tiny-llama-0}}}}
          b: {{model: {{model: b, source: tests/tiny-qwen2-0}}}}
        nodes:
          read: {{agent: a, prompt: the code is seven two, max_new_tokens: 0}}
          answer: {{agent: b, prompt: what is it, max_new_tokens: 4}}
        edges: [{{from: read, to: answer, channel: {{name: lcf, variant: {variant}}}}}]
        """
    )
    pool = EnginePool(factory=lambda spec: tiny_engine({"a": "llama", "b": "qwen2"}[spec.model]))
    (found,) = Orchestrator(bind(workflow), pool).run([("1", {})])
    (result,) = found.nodes["answer"]
    assert result.messages[0].channel == "lcf"
    assert result.messages[0].bytes > 0
    assert result.generated > 0


RECEIVING = """
import sys
from pathlib import Path
from agentflow.channels.registry import make_channel
from agentflow.kv.wire import read_payload
from tests.tiny import tiny_engine

receiver = tiny_engine("qwen2")  # the only model of this process
payload = read_payload(Path(sys.argv[1]), key=b"k")
cache = make_channel("lcf", {"variant": "mapped"}).receive(payload, receiver).cache
print(len(cache), float(cache.keys[-1].double().sum()))
"""


def test_another_process_with_the_bundle_and_its_own_model_stands_on_the_same_cache(pair, tmp_path):
    payload, direct = over(*pair, "mapped", bits=8)
    write_payload(payload, tmp_path / "p.safetensors", key=b"k")
    root = Path(__file__).parents[2]
    told = subprocess.run(
        [sys.executable, "-c", RECEIVING, str(tmp_path / "p.safetensors")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()
    cache = direct.context.cache
    assert int(told[0]) == len(cache)
    assert float(told[1]) == pytest.approx(float(cache.keys[-1].double().sum()), abs=1e-4)
