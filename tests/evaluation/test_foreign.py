"""The control `mismatched` of trained channels: this item's words, another item's cache beside them."""

from __future__ import annotations

import pytest
import torch

from agentflow.adapters.bundle import open_bundle
from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.errors import UserError
from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.foreign import in_place_of, overheard
from agentflow.evaluation.standins import Mismatched
from agentflow.kv.fanin import concat
from agentflow.kv.payload import Turn
from agentflow.models.chat import conversation, join, render
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.memo import Memo
from agentflow.runtime.options import RunOptions
from agentflow.workflow.loader import parse_workflow
from tests.adapters.samples import bundle_of
from tests.evaluation.test_compare import TWO_MODELS
from tests.tiny import tiny_engine

FAMILIES = {"tiny-llama-0": "llama", "tiny-qwen2-0": "qwen2"}
LONG, SHORT = "the code of room is seven remember the code of paris is blue", "red"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    return bundle_of(tmp_path / "adapters" / "pair", tiny_engine(), tiny_engine("qwen2"), scale=0.3).folder


@pytest.fixture
def engines():
    return EnginePool(factory=lambda spec: tiny_engine(FAMILIES[spec.model]))


def message(text, before=None, name="read"):
    engine, turns = tiny_engine(), (Turn("user", text),)
    ids = tuple(render(engine.tokenizer, turns, reply=False))
    head = before.next_position if before is not None else 0
    return Message(name, turns, "", (*[5] * head, *ids), engine.prefill(ids, before), engine, head)


@pytest.mark.parametrize(("right", "wrong"), [(SHORT, LONG), (LONG, SHORT)])
def test_what_is_sent_is_the_other_cache_encoded_and_the_right_words(folder, right, wrong):
    task, channel = Task("", "", tiny_engine("qwen2")), make_channel("c2c")
    plain = channel.send(message(right), task)
    swapped = Mismatched(channel, {"read": message(wrong)}).send(message(right), task)
    theirs, length = message(wrong).cache, len(message(right).cache)
    repeated = concat([theirs] * (1 + length // len(theirs)), tiny_engine().loaded.ropes)
    codes = open_bundle(folder).load().encode(repeated.select(torch.arange(length)), ())
    assert swapped.body.tensors.keys() == {*codes, "spans", "places"}
    for name, tensor in swapped.body.tensors.items():
        torch.testing.assert_close(tensor, codes.get(name, plain.body.tensors[name]), atol=0, rtol=0)
    assert swapped.body.settings == plain.body.settings
    assert swapped.header.tokens == plain.header.tokens
    contexts = [channel.receive(p, tiny_engine("qwen2")) for p in (plain, swapped)]
    assert contexts[0].stats["aligned_share"] == contexts[1].stats["aligned_share"] == 1.0
    assert torch.equal(contexts[0].base.keys[0], contexts[1].base.keys[0])
    assert not torch.allclose(contexts[0].cache.keys[0], contexts[1].cache.keys[0], atol=1e-3)


def test_conversations_that_others_stand_before_are_exchanged_without_them():
    before = tiny_engine().prefill([3, 4, 5, 6])
    right, wrong = message(SHORT), message(LONG, before)
    made = in_place_of(right, wrong).cache
    own = wrong.cache.select(wrong.cache.positions >= 4)
    assert made.positions.tolist() == right.cache.positions.tolist()
    torch.testing.assert_close(made.values[1], own.values[1][:, : len(right.cache)])
    back = in_place_of(wrong, right).cache
    assert back.positions.tolist() == own.positions.tolist()
    assert back.next_position == wrong.cache.next_position
    # Turned to where they stand: the first key of a text is that of the same text four positions further on.
    assert not torch.allclose(back.keys[0][:, 0], right.cache.keys[0][:, 0], atol=1e-3)


def test_the_senders_of_another_item_are_heard_without_the_receiver(folder, engines):
    binding = bind(parse_workflow(TWO_MODELS))
    asked = {"facts": [LONG], "questions": ["what?"]}
    heard = overheard(binding, asked, engines, RunOptions(reuse=False, overlap="off"), Memo())
    assert list(heard) == ["read"]
    assert heard["read"].turns == conversation("remember", LONG)
    assert len(heard["read"].cache) == len(heard["read"].token_ids)


def test_the_first_child_of_a_mapped_sender_is_heard(folder, engines):
    mapped = TWO_MODELS.replace(
        "{agent: reader, prompt: \"{{ inputs.facts | join(' ') }}\"",
        '{agent: reader, map: {over: inputs.facts, as: fact}, prompt: "{{ fact }}"',
    )
    asked = {"facts": [SHORT, LONG], "questions": ["what?"]}
    heard = overheard(bind(parse_workflow(mapped)), asked, engines, RunOptions(), Memo())
    assert heard["read"].turns == conversation("remember", SHORT)


def test_a_sender_that_says_nothing_on_the_other_item_has_nothing_to_mismatch(folder):
    with pytest.raises(UserError, match="'read' has no message on the other item"):
        Mismatched(make_channel("c2c"), {}).send(message(SHORT), Task("", "", tiny_engine("qwen2")))


def test_a_comparison_scores_the_right_text_with_the_next_items_cache(folder, engines, task):
    items = task.items(data=None, limit=2, seed=0)
    options = CompareOptions(controls=("mismatched",))
    found = compare(parse_workflow(TWO_MODELS), task, items, ["text", "c2c"], engines, options=options)
    rows = {arm.name: found.of(arm.name) for arm in found.arms}
    assert not any(row.error for of in rows.values() for row in of)
    for n, row in enumerate(rows["mismatched(c2c)"]):
        assert row.nll == pytest.approx(by_hand(folder, items[n].inputs, items[1 - n], items[n]), abs=1e-4)
        assert row.nll != pytest.approx(rows["c2c"][n].nll, abs=1e-3)
        assert row.prefilled == rows["c2c"][n].prefilled
        assert row.bytes == rows["c2c"][n].bytes
    others = [r.nll for r in rows["mismatched(text)"]]
    assert [r.nll for r in rows["mismatched(c2c)"]] != pytest.approx(others, abs=1e-3)


def by_hand(folder, inputs, other, item):
    """The answers' NLL of the receiver that read this item's facts, with the other's cache fused in."""
    sender, receiver = tiny_engine(), tiny_engine("qwen2")
    turns, foreign = (conversation("remember", " ".join(facts)) for facts in (inputs["facts"], other.inputs["facts"]))
    ids = render(receiver.tokenizer, turns, reply=False)
    theirs = sender.prefill(render(sender.tokenizer, foreign, reply=False))
    theirs = concat([theirs, theirs], sender.loaded.ropes).select(torch.arange(len(ids)))
    adapter = open_bundle(folder).load()
    fused = adapter.decode(adapter.encode(theirs, ()), receiver.prefill(ids), (), torch.arange(len(ids)))
    scores = []
    for question, answers in zip(inputs["questions"], item.answers, strict=True):
        asked = render(receiver.tokenizer, conversation("answer", question, turns), reply=True)
        joined = join(asked, fused, tuple(ids))
        answer = receiver.tokenizer(answers[0], add_special_tokens=False)["input_ids"]
        scores.append(receiver.score(joined.prefix, joined.suffix, answer).nll)
    return sum(scores) / len(scores)
