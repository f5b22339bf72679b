"""Channels: text and cache carry the same conversation; misfits are refused by name."""

from __future__ import annotations

import pytest

from agentflow.channels.base import Message, Task
from agentflow.channels.registry import channel_names, get_channel, make_channel
from agentflow.channels.text import TextChannel
from agentflow.errors import ChannelError, PayloadError
from agentflow.kv.payload import TextBody, Turn
from agentflow.kv.wire import read_payload, write_payload
from agentflow.models.chat import conversation, join, render
from agentflow.models.requests import Request
from agentflow.models.spec import ModelSpec
from tests.tiny import make_engine, tiny_engine, tiny_model

TURNS = (Turn("system", "be brief"), Turn("user", "the code is seven"), Turn("assistant", "ok"))


def message(engine):
    ids = tuple(render(engine.tokenizer, TURNS, reply=False))
    return Message("read", TURNS, "ok", ids, engine.prefill(ids), engine)


def answer(engine, context):
    ids = render(engine.tokenizer, conversation("", "what is the code?", context.turns), reply=True)
    joined = join(ids, context.cache, context.token_ids)
    return engine.generate([Request(joined.suffix, joined.prefix, max_new_tokens=10)])[0]


def test_built_in_channels_come_through_the_entry_points():
    assert {"text", "cache"} <= set(channel_names())
    assert get_channel("text") is TextChannel


def test_cache_and_text_give_the_same_answer_and_the_cache_prefills_less():
    engine = tiny_engine()
    task = Task("what is the code?", "", engine)
    text, cache = make_channel("text"), make_channel("cache")
    by_text = answer(engine, text.receive(text.send(message(engine), task), engine))
    by_cache = answer(engine, cache.receive(cache.send(message(engine), task), engine))
    assert by_cache.token_ids == by_text.token_ids
    assert by_cache.prefilled < by_text.prefilled
    assert by_cache.prefilled + by_cache.reused == by_text.prefilled


def test_a_cache_that_went_through_a_file_gives_the_same_answer(tmp_path):
    engine, channel = tiny_engine(), make_channel("cache")
    payload = channel.send(message(engine), Task("", "", engine))
    write_payload(payload, tmp_path / "p.safetensors", key=b"shared")
    read = read_payload(tmp_path / "p.safetensors", key=b"shared")
    direct, stored = (answer(engine, channel.receive(p, engine)).token_ids for p in (payload, read))
    assert direct == stored


def test_a_cache_of_other_weights_is_refused_by_name_of_what_differs():
    sender, receiver = tiny_engine(), make_engine(tiny_model(seed=4), "other")
    channel = make_channel("cache")
    payload = channel.send(message(sender), Task("", "", receiver))
    with pytest.raises(PayloadError, match=r"'tiny-llama-0' does not fit 'other': different weights"):
        channel.receive(payload, receiver)


def test_check_needs_no_weights():
    one, other = ModelSpec(model="a", source="x/a"), ModelSpec(model="b", source="x/b")
    assert make_channel("cache").check(one, one).fits
    refused = make_channel("cache").check(one, other)
    assert (refused.fits, refused.instead) == (False, "text")
    assert "'a' is not 'b'" in refused.reason
    assert make_channel("text").check(one, other).fits


def test_only_the_answer_travels_when_asked():
    engine = tiny_engine()
    channel = make_channel("text", {"scope": "answer"})
    payload = channel.send(message(engine), Task("", "", engine))
    assert payload.body == TextBody((Turn("assistant", "ok"),))
    assert channel.receive(payload, engine).note == "Message from read:\nok"


@pytest.mark.parametrize(("most", "left"), [(99, "né sept"), (13, "né s"), (10, "n"), (8, None), (3, None)])
def test_text_is_cut_to_its_bytes_with_the_instructions_whole_and_counted(most, left):
    turns = (Turn("system", "be brief"), Turn("user", "né sept"))
    channel, engine = make_channel("text", {"max_bytes": most}), tiny_engine()
    payload = channel.send(Message("read", turns, ""), Task("", "", engine))
    assert payload.body.turns == (turns[0], *((Turn("user", left),) if left else ()))
    assert payload.nbytes <= max(most, 8)
    assert payload.header.losses == (f"text cut to {most} bytes",)


def test_a_sender_without_a_cache_and_a_foreign_body_are_clear_errors():
    engine = tiny_engine()
    with pytest.raises(ChannelError, match="kept no cache"):
        make_channel("cache").send(Message("read", TURNS, "ok"), Task("", "", engine))
    text = make_channel("text").send(message(engine), Task("", "", engine))
    with pytest.raises(PayloadError, match="holds text, not a cache"):
        make_channel("cache").receive(text, engine)


@pytest.mark.parametrize(
    ("name", "settings", "what"),
    [
        ("cach", {}, "Unknown channel 'cach'. Did you mean 'cache'"),
        ("text", {"scop": "answer"}, "unknown setting 'scop'"),
        ("text", {"scope": "all"}, "'trajectory' or 'answer', not 'all'"),
        ("text", {"max_bytes": -1}, "max_bytes"),
        ("retrieval", {"ratio": 0}, "ratio"),
        ("retrieval", {"ratio": 1.1}, "ratio"),
        ("retrieval", {"top_k": 0}, "top_k"),
        ("retrieval", {"chunk_words": 0}, "chunk_words"),
        ("retrieval", {"chunk": "letter"}, "'sentence', 'paragraph' or 'words', not 'letter'"),
        ("retrieval", {"limit": "bytes"}, "'ratio', 'max_tokens' or 'top_k', not 'bytes'"),
        ("summary", {"max_tokens": 0}, "max_tokens"),
        ("summary", {"ratio": 2}, "ratio"),
        ("summary", {"by": "me"}, "'receiver' or 'sender', not 'me'"),
        ("summary", {"instruction": ""}, "instruction"),
        ("summary", {"temperature": 1}, "unknown setting 'temperature'"),
    ],
)
def test_wrong_names_and_settings_are_one_plain_error(name, settings, what):
    with pytest.raises(ChannelError) as caught:
        make_channel(name, settings)
    assert what in str(caught.value)
