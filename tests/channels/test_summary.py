"""Summaries: the writer's own words for the whole conversation, whatever of it was computed before; and their price."""

from __future__ import annotations

from itertools import takewhile

import pytest
import torch

from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.channels.summary import INSTRUCTION
from agentflow.errors import ChannelError, ModelError
from agentflow.kv.payload import Turn
from agentflow.models.chat import conversation, render
from agentflow.models.engine import Engine
from agentflow.models.loading import load_model
from agentflow.models.requests import Request
from agentflow.models.spec import ModelSpec, resolve_model
from agentflow.models.tally import tallied
from tests.tiny import make_engine, tiny_engine, tiny_model, words

TURNS = (Turn("system", "be brief"), Turn("user", "the code of room seven is red"), Turn("assistant", "ok"))
PROMPT = "what is the code?"


def message(engine, *, cache=True, turns=TURNS):
    ids = tuple(render(engine.tokenizer, turns, reply=False))
    return Message("read", turns, "ok", ids if cache else (), engine.prefill(ids) if cache else None, engine)


def fresh(engine):
    """The same model without anything that was computed before."""
    return Engine(engine.loaded)


def sent(sender, receiver, **chosen):
    return make_channel("summary", {"max_tokens": 12, **chosen}).send(sender, Task(PROMPT, "", receiver))


def asked(engine, instruction=INSTRUCTION, turns=TURNS):
    return tuple(render(engine.tokenizer, conversation("", f"{instruction}\n\n{PROMPT}", turns), reply=True))


def written(engine, limit=12, **more):
    """What the model answers to the whole prompt, computed from the start."""
    return engine.generate([Request(asked(engine, **more), max_new_tokens=limit)])[0]


def said(payload):
    return payload.body.turns[-1].content


@pytest.mark.parametrize("family", ["llama", "qwen2-yarn", "qwen3", "gemma3", "mistral-sliding"])
@pytest.mark.parametrize("turns", [TURNS, TURNS[:2]], ids=["spoke", "read only"])
def test_on_the_senders_cache_it_is_what_a_fresh_prefill_gives_and_only_the_instruction_is_computed(family, turns):
    engine = fresh(tiny_engine(family))
    wanted, sender = written(engine, turns=turns), message(engine, turns=turns)
    with tallied() as computed:
        reused = sent(sender, engine)
    again = sent(message(engine, cache=False, turns=turns), fresh(engine))
    assert said(reused) == said(again) == wanted.text.strip()
    pairs = zip(asked(engine, turns=turns), sender.token_ids, strict=False)
    instruction = wanted.prefilled - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert instruction < wanted.prefilled - 20
    assert reused.stats["prefilled"] == computed.prefilled == instruction
    assert reused.stats["generated"] == computed.generated == len(wanted.token_ids)
    assert again.stats["prefilled"] == len(sender.token_ids) + instruction
    assert reused.stats["summary_seconds"] > 0


def test_a_second_receivers_summary_stands_on_what_was_encoded_for_the_first():
    engine = fresh(tiny_engine())
    first, second = (sent(message(engine, cache=False), engine) for _ in range(2))
    assert said(second) == said(first)
    assert second.stats["prefilled"] == first.stats["prefilled"] - first.header.tokens


def test_a_conversation_behind_another_is_summed_up_in_the_sight_of_both():
    engine = tiny_engine()
    before, ids = tuple(words(30)), tuple(render(engine.tokenizer, TURNS, reply=False))
    cache = engine.prefill((*before, *ids))
    sender = Message("read", TURNS, "ok", (*before, *ids), cache, engine, head=30, losses=("joined",))
    payload = sent(sender, engine)
    wanted = engine.generate([Request((*before, *asked(engine)), max_new_tokens=12)])[0]
    assert said(payload) == wanted.text.strip()
    assert said(payload) != written(engine).text.strip()
    assert payload.header.tokens == len(ids)
    assert payload.header.losses[0] == "joined"
    anew = sent(sender, make_engine(tiny_model(seed=5), "other"))  # it reads the words, where nothing was lost
    assert "joined" not in anew.header.losses


def test_the_receivers_model_writes_or_the_senders_where_it_is_asked_to():
    sender, receiver = fresh(tiny_engine()), make_engine(tiny_model(seed=5), "other")
    by_receiver, by_sender = (sent(message(sender), receiver, by=by) for by in ("receiver", "sender"))
    assert said(by_receiver) == written(receiver).text.strip()
    assert said(by_sender) == written(sender).text.strip()
    assert said(by_receiver) != said(by_sender)
    assert by_receiver.stats["prefilled"] > by_sender.stats["prefilled"]  # the sender's model had read it


def test_a_sender_elsewhere_is_summed_up_by_the_receiver_alone():
    engine, remote = fresh(tiny_engine()), Message("remote", TURNS, "ok")
    assert said(sent(remote, engine)) == written(engine).text.strip()
    with pytest.raises(ChannelError, match=r"'remote' runs elsewhere.* Say `by: receiver`"):
        sent(remote, engine, by="sender")


def test_any_pair_of_models_fits():
    one, other = ModelSpec(model="a", source="x/a"), ModelSpec(model="b", source="x/b")
    assert all(make_channel("summary", {"by": by}).check(one, other).fits for by in ("receiver", "sender"))


def test_the_limit_is_a_number_of_tokens_or_a_share_of_the_conversation():
    engine = tiny_engine()
    length = len(render(engine.tokenizer, TURNS, reply=False))
    for chosen, limit in (({"max_tokens": 7}, 7), ({"ratio": 0.2}, round(0.2 * length)), ({"ratio": 1e-6}, 1)):
        payload = sent(message(engine), engine, **chosen)
        wanted = written(engine, limit)
        assert said(payload) == wanted.text.strip()
        assert payload.stats["generated"] == limit
        assert payload.header.losses == (f"summary of {limit} tokens in place of {length}", "summary cut at its limit")


def test_the_instruction_is_plain_text_and_the_task_follows_it():
    engine, mine = tiny_engine(), "say {{ red }} {x} %s"
    assert said(sent(message(engine), engine, instruction=mine)) == written(engine, instruction=mine).text.strip()
    other = make_channel("summary", {"max_tokens": 12}).send(message(engine), Task("who is in paris?", "", engine))
    assert said(other) != said(sent(message(engine), engine))


def test_the_receiver_reads_it_at_the_head_of_its_prompt_and_its_tokens_are_counted():
    engine = tiny_engine()
    payload = sent(message(engine), engine)
    context = make_channel("summary").receive(payload, engine)
    assert context.note == f"Message from read:\n{said(payload)}"
    assert context.turns == ()
    assert payload.header.kept == len(engine.tokenizer(said(payload))["input_ids"])
    assert payload.header.tokens == len(render(engine.tokenizer, TURNS, reply=False))


@pytest.mark.parametrize("turns", [(), (Turn("system", "be brief"),), (Turn("user", " \n"),)])
def test_nothing_to_sum_up_is_a_clear_error(turns):
    with pytest.raises(ChannelError, match="'read' has said and read nothing"):
        sent(Message("read", turns, ""), tiny_engine())


def test_a_model_that_has_nothing_to_say_is_a_clear_error():
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()  # then the first token is the best: a special one, of no text
    mute = make_engine(model, "mute")
    with pytest.raises(ChannelError, match="'mute' wrote an empty summary of 'read'"):
        sent(message(mute), mute)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("length", [480, 700])
def test_a_conversation_beyond_the_models_positions_is_a_clear_error(cached, length):
    long = (Turn("user", "é" * (length // 2)),)
    roomy = make_engine(tiny_model(max_position_embeddings=2048), "roomy")
    engine = tiny_engine()
    sender = message(roomy, cache=cached, turns=long)
    with pytest.raises(ModelError, match="more than the 512 positions"):
        sent(sender, engine)


@pytest.mark.real
def test_the_embedded_model_sums_up_for_the_task_and_what_it_says_is_the_same_on_its_own_cache():
    engine = Engine(load_model(resolve_model("smollm2-135m")))
    turns = (Turn("user", "The code of Ada's locker is 7391. The weather in Oslo was mild. Bob paid 12 € for tea."),)
    sender, task = message(engine, turns=turns), Task("What is the code of Ada's locker?", "", engine)
    payload = make_channel("summary", {"max_tokens": 48}).send(sender, task)
    assert "7391" in said(payload)
    anew = make_channel("summary", {"max_tokens": 48}).send(message(engine, cache=False, turns=turns), task)
    assert said(anew) == said(payload)
    chosen = make_channel("retrieval", {"limit": "max_tokens", "max_tokens": 40}).send(sender, task)
    assert said(chosen) == "The code of Ada's locker is 7391."
    assert chosen.header.kept <= 40 < chosen.header.tokens
