"""Cache-to-Cache between tiny models of two families and tokenizers: what crosses, what is refused, what is shared."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from agentflow.adapters.bundle import open_bundle
from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.errors import AdapterError, ChannelError, PayloadError
from agentflow.kv.payload import Turn
from agentflow.kv.wire import read_payload, write_payload
from agentflow.models.alignment import align, spans_of
from agentflow.models.chat import conversation, join, render
from agentflow.models.engine import Engine
from agentflow.models.loading import prepare
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Request
from agentflow.models.spec import ModelSpec
from agentflow.models.tally import tallied
from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.workflow.loader import parse_workflow
from tests.adapters.samples import bundle_of
from tests.models.test_alignment import word_tokenizer
from tests.tiny import make_engine, tiny_engine, tiny_model

TURNS = (Turn("system", "be brief"), Turn("user", "the code of room 東京 is seven"), Turn("assistant", "ok"))
TASK_PROMPT = "what is the code?"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pair():
    return tiny_engine("llama"), tiny_engine("qwen2")


@pytest.fixture
def folder(pair, tmp_path):
    return bundle_of(tmp_path / "cache" / "adapters" / "pair", *pair).folder


def message(engine, turns=TURNS, name="read"):
    ids = tuple(render(engine.tokenizer, turns, reply=False))
    return Message(name, turns, turns[-1].content, ids, engine.prefill(ids), engine)


def over(sender, receiver, **settings):
    channel = make_channel("c2c", settings)
    payload = channel.send(message(sender), Task(TASK_PROMPT, "", receiver))
    return payload, channel.receive(payload, receiver)


def answer(engine, context, **more):
    ids = render(engine.tokenizer, conversation("", TASK_PROMPT, context.turns), reply=True)
    joined = join(ids, context.cache, context.token_ids)
    return engine.generate([Request(joined.suffix, joined.prefix, max_new_tokens=8, **more)])[0]


def by_text(engine, turns=TURNS):
    ids = render(engine.tokenizer, conversation("", TASK_PROMPT, turns), reply=True)
    return engine.generate([Request(tuple(ids), max_new_tokens=8)])[0]


def test_the_receiver_stands_on_its_own_cache_with_the_senders_fused_in(pair, folder):
    sender, receiver = pair
    _, context = over(*pair)
    ids = tuple(render(receiver.tokenizer, TURNS, reply=False))
    own, theirs = receiver.prefill(ids), sender.prefill(ids)
    adapter = open_bundle(folder).load()
    expected = adapter.decode(adapter.encode(theirs, ()), own, (), torch.arange(len(ids)))
    for found, wanted, before in zip(context.cache.keys, expected.keys, own.keys, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
        assert not torch.allclose(found, before, atol=1e-3)
    assert context.token_ids == ids
    assert context.turns == TURNS
    assert context.losses == ("fused with the cache of 'read' (tiny-llama-0)",)
    assert context.stats["aligned_share"] == 1.0
    assert answer(receiver, context).reused >= len(ids) - 3


def test_shut_gates_give_the_answer_of_the_receiver_that_read_the_text(pair, tmp_path):
    bundle_of(tmp_path / "shut", *pair, gate=-1.0)
    _, context = over(*pair, bundle=str(tmp_path / "shut"))
    for found, own in zip(context.cache.keys, context.base.keys, strict=True):
        assert found is own
    assert answer(pair[1], context).token_ids == by_text(pair[1]).token_ids


def test_a_message_that_went_through_a_file_gives_the_same_cache(pair, folder, tmp_path):
    channel = make_channel("c2c")
    payload, direct = over(*pair)
    write_payload(payload, tmp_path / "p.safetensors", key=b"k")
    stored = channel.receive(read_payload(tmp_path / "p.safetensors", key=b"k"), pair[1])
    assert all(torch.equal(a, b) for a, b in zip(direct.cache.keys, stored.cache.keys, strict=True))
    cache_bytes = message(pair[0]).cache.nbytes
    text_bytes = sum(len(t.content.encode()) for t in TURNS)
    assert payload.nbytes > cache_bytes + text_bytes


def test_several_receivers_of_one_message_read_and_fuse_it_once(pair, folder):
    channel, receiver = make_channel("c2c"), pair[1]
    payload = channel.send(message(pair[0]), Task(TASK_PROMPT, "", receiver))
    with tallied() as first:
        one = channel.receive(payload, receiver)
    with tallied() as second:
        other = make_channel("c2c").receive(payload, receiver)
    assert other.cache is one.cache
    assert second.prefilled == 0
    receiver.prefixes.clear()
    with tallied() as third:
        channel.receive(channel.send(message(pair[0]), Task("", "", receiver)), receiver)
    assert third.prefilled > first.prefilled - 1


def test_a_batch_on_fused_caches_is_its_rows_one_by_one(pair, folder):
    receiver, channel, requests = pair[1], make_channel("c2c"), []
    for text in ("the code is seven", "red", "who is in paris? answer " * 4):
        payload = channel.send(message(pair[0], (Turn("user", text),)), Task(TASK_PROMPT, "", receiver))
        context = channel.receive(payload, receiver)
        ids = render(receiver.tokenizer, conversation("", TASK_PROMPT, context.turns), reply=True)
        joined = join(ids, context.cache, context.token_ids)
        requests.append(Request(joined.suffix, joined.prefix, max_new_tokens=8))
    together = [a.token_ids for a in receiver.generate(requests)]
    assert together == [receiver.generate([r])[0].token_ids for r in requests]


def other_receiver():
    spec = ModelSpec(model="words", source="tests/words")
    model = tiny_model("llama", seed=2, num_hidden_layers=3, vocab_size=len(word_tokenizer()))
    return Engine(prepare(spec, model, word_tokenizer()))


def test_models_with_other_tokenizers_templates_and_depths_are_joined(tmp_path):
    sender, receiver = tiny_engine("llama"), other_receiver()
    bundle_of(tmp_path / "b", sender, receiver)
    payload, context = over(sender, receiver, bundle=str(tmp_path / "b"))
    theirs, own = message(sender), render(receiver.tokenizer, TURNS, reply=False)
    partners = align(spans_of(receiver.tokenizer, own, TURNS), spans_of(sender.tokenizer, theirs.token_ids, TURNS))
    adapter = open_bundle(tmp_path / "b").load()
    expected = adapter.decode(adapter.encode(theirs.cache, ()), receiver.prefill(own), (), partners)
    for found, wanted in zip(context.cache.values, expected.values, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert 0.5 < context.stats["aligned_share"] < 1.0
    assert payload.header.tokens == len(theirs.token_ids)
    assert len(answer(receiver, context).token_ids) == 8


def test_what_other_conversations_left_before_the_senders_own_is_left_out(pair, folder):
    sender, receiver = pair
    whole = message(sender)
    before = sender.prefill(tuple(render(sender.tokenizer, (Turn("user", "red"),), reply=False)))
    n = before.next_position
    behind = replace(
        whole,
        head=n,
        token_ids=(*([5] * n), *whole.token_ids),
        cache=sender.prefill(whole.token_ids, onto=before),
        losses=("joined",),
    )
    payload = make_channel("c2c").send(behind, Task("", "", receiver))
    context = make_channel("c2c").receive(payload, receiver)
    assert payload.header.tokens == len(whole.token_ids)
    assert context.losses[:2] == ("joined", f"{n} positions of other conversations left out")
    assert context.stats["aligned_share"] == 1.0


def test_a_sender_that_dropped_positions_leaves_those_of_the_receiver_as_they_are(pair, folder):
    sender, receiver = pair
    whole = message(sender)
    kept = torch.tensor([0, 1, 2, 5, 9])
    payload = make_channel("c2c").send(replace(whole, cache=whole.cache.select(kept)), Task("", "", receiver))
    context = make_channel("c2c").receive(payload, receiver)
    changed = [bool((a[:, n] != b[:, n]).any()) for a, b in [(context.cache.keys[1], context.base.keys[1])]
               for n in range(len(whole.token_ids))]  # fmt: skip
    assert [n for n, is_changed in enumerate(changed) if is_changed] == kept.tolist()


# -- what does not fit -------------------------------------------------------------------------------------


def test_check_reads_the_card_and_no_weights(pair, folder):
    (folder / "adapter.safetensors").unlink()
    sender, receiver = (e.loaded.spec for e in pair)
    assert make_channel("c2c").check(sender, receiver).fits
    assert make_channel("c2c", {"bundle": "pair"}).check(sender, receiver).fits
    back = make_channel("c2c").check(receiver, sender)
    assert (back.fits, back.instead) == (False, "text")
    assert back.reason == "there is no bundle of 'c2c' from 'tiny-qwen2-0' to 'tiny-llama-0'"
    named = make_channel("c2c", {"bundle": str(folder)}).check(receiver, sender)
    assert (
        "'pair' was made for the sender 'tiny-llama-0' (tests/tiny-llama-0), and this is 'tiny-qwen2-0'" in named.reason
    )


def test_check_compares_shapes_where_a_configuration_is_on_this_machine(pair, folder, tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 64}
    (local / "config.json").write_text(json.dumps(config))
    other = ModelSpec(model="local", source=str(local))
    found = make_channel("c2c", {"bundle": str(folder)}).check(other, pair[1].loaded.spec)
    assert found.reason.endswith("of 4 layers, 2 KV heads x 8, and 'local' has 2 layers, 4 KV heads x 16")


def test_foreign_models_are_refused_by_name_of_what_differs(pair, folder):
    sender, receiver = pair
    stranger = make_engine(tiny_model("llama", seed=8), "stranger")
    channel = make_channel("c2c", {"bundle": str(folder)})
    with pytest.raises(AdapterError, match=r"made for the sender 'tiny-llama-0', and 'stranger' is another one: "
                       "different weights"):  # fmt: skip
        channel.send(message(stranger), Task("", "", receiver))
    payload = channel.send(message(sender), Task("", "", receiver))
    with pytest.raises(AdapterError, match="made for the receiver 'tiny-qwen2-0', and 'stranger'"):
        channel.receive(payload, stranger)


def test_other_weights_of_the_same_source_are_told(pair, folder):
    spec = pair[1].loaded.spec
    requantised = Engine(prepare(spec, tiny_model("qwen2", seed=9), pair[1].tokenizer))
    _, context = over(pair[0], requantised)
    (told,) = context.warnings
    assert told.startswith("the adapter was made with other weights (")
    assert over(*pair)[1].warnings == ()


def test_other_bodies_damaged_codes_and_other_adapters_are_refused(pair, folder, tmp_path):
    sender, receiver = pair
    channel, task = make_channel("c2c"), Task("", "", receiver)
    with pytest.raises(ChannelError, match="kept no cache"):
        channel.send(Message("read", TURNS, "ok"), task)
    with pytest.raises(PayloadError, match="sent over 'text', not 'c2c'"):
        channel.receive(make_channel("text").send(message(sender), task), receiver)
    good = channel.send(message(sender), task)
    for body, what in (
        (replace(good.body, tensors={**good.body.tensors, "spans": torch.zeros(3)}), "its spans are none"),
        (replace(good.body, tensors={**good.body.tensors, "places": torch.tensor([99])}), "its places are none"),
        (replace(good.body, tensors={}), "can't be used: 'spans'"),
        (replace(good.body, settings={**good.body.settings, "turns": [{"role": "x"}]}), "turn"),
        (replace(good.body, settings={**good.body.settings, "source": "x"}), "can't be used"),
    ):
        with pytest.raises(PayloadError, match=what):
            channel.receive(replace(good, body=body), receiver)
    short = {n: t if n in ("spans", "places") else t[:, :2] for n, t in good.body.tensors.items()}
    with pytest.raises(AdapterError, match=r"layers\.0\.key"):
        channel.receive(replace(good, body=replace(good.body, tensors=short)), receiver)
    card = json.loads((folder / "adapter.json").read_text())
    (folder / "adapter.json").write_text(json.dumps({**card, "adapter": "lcf"}))
    with pytest.raises(AdapterError, match="holds a 'lcf', and this channel needs a 'c2c'"):
        make_channel("c2c", {"bundle": "pair"}).send(message(sender), task)


# -- in a workflow -----------------------------------------------------------------------------------------

FLOW = """
workflow: fused
inputs: {facts: list}
agents:
  reader: {model: {source: tests/tiny-llama-0, model: tiny-llama-0}, system: remember}
  second: {model: {source: tests/tiny-llama-1, model: tiny-llama-1}, system: remember}
  answerer: {model: {source: tests/tiny-qwen2-0, model: tiny-qwen2-0}}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  again: {agent: second, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  answer: {agent: answerer, prompt: "what code?", max_new_tokens: 6}
edges:
  - {from: read, to: answer, channel: c2c}
  - {from: again, to: answer, channel: c2c}
outputs: {answer: "{{ nodes.answer.text }}"}
"""
ENGINES = {"tiny-llama-0": ("llama", 0), "tiny-llama-1": ("llama", 1), "tiny-qwen2-0": ("qwen2", 0)}


def engines():
    return EnginePool(factory=lambda spec: tiny_engine(*ENGINES[spec.model]))


def run(text, **more):
    return Orchestrator(bind(parse_workflow(text)), engines(), **more).run([("one", {"facts": ["the code is seven"]})])


def test_what_several_senders_fuse_into_one_conversation_is_added_up(folder, tmp_path):
    bundle_of(tmp_path / "cache" / "adapters" / "other", tiny_engine("llama", 1), tiny_engine("qwen2"))
    seen = {}
    run(FLOW, probe=lambda unit, engine, plan, said: seen.setdefault(unit.node, plan.foundation))
    contexts = []
    for seed in (0, 1):
        turns = conversation("remember", "the code is seven")
        channel, receiver = make_channel("c2c"), tiny_engine("qwen2")
        payload = channel.send(message(tiny_engine("llama", seed), turns), Task("", "", receiver))
        contexts.append(channel.receive(payload, receiver))
    base = contexts[0].base
    for n in range(len(base.keys)):
        length = len(seen["answer"].prefix)
        wanted = sum(c.cache.keys[n] - base.keys[n] for c in contexts) + base.keys[n]
        torch.testing.assert_close(seen["answer"].prefix.keys[n], wanted[:, :length], atol=1e-5, rtol=0)
    assert len(seen["answer"].losses) == 2
    assert not seen["answer"].exact


def test_caches_of_different_conversations_are_joined_behind_one_another(folder, tmp_path):
    bundle_of(tmp_path / "cache" / "adapters" / "other", tiny_engine("llama", 1), tiny_engine("qwen2"))
    seen = {}
    differs = FLOW.replace('again: {agent: second, prompt: "', 'again: {agent: second, prompt: "red ')
    (found,) = run(differs, probe=lambda unit, engine, plan, said: seen.setdefault(unit.node, plan.foundation))
    assert not found.errors
    assert any("2 caches joined" in loss for loss in seen["answer"].losses)


def test_a_stored_answer_is_void_when_the_bundle_has_changed(folder, pair, tmp_path):
    bundle_of(tmp_path / "cache" / "adapters" / "other", tiny_engine("llama", 1), tiny_engine("qwen2"))
    sender, receiver = (e.loaded.spec for e in pair)
    before = make_channel("c2c").mark(sender, receiver)
    keys = []
    for _ in range(2):
        run(FLOW, options=RunOptions(), probe=lambda unit, engine, plan, said: keys.append(plan.key))
        bundle_of(folder, *pair, scale=0.2)
    assert make_channel("c2c").mark(sender, receiver) != before
    assert keys[2]["messages"] != keys[5]["messages"]
    assert keys[2]["prompt"] == keys[5]["prompt"]


def test_a_workflow_without_a_bundle_is_refused_when_it_is_checked():
    from agentflow.errors import WorkflowError

    with pytest.raises(WorkflowError, match="does not fit read -> answer: there is no bundle of 'c2c' from"):
        bind(parse_workflow(FLOW))
