"""Joining turns to cached prefixes: the tokens are always those of the template over the whole conversation."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import ModelError
from agentflow.kv.payload import Turn
from agentflow.models.chat import append_turn, conversation, join, prompt_span, render
from agentflow.models.requests import Request
from tests.tiny import tiny_engine, tiny_tokenizer

words = st.text(alphabet="abc .,\n?é漢", min_size=0, max_size=12)


@settings(max_examples=25, deadline=None)
@given(system=words, first=words, said=words, second=words, spoke=st.booleans())
def test_a_joined_sequence_is_the_templates_own(system, first, said, second, spoke):
    engine, tokenizer = tiny_engine(), tiny_tokenizer()
    history = conversation(system, first)
    if spoke:
        history = append_turn(history, Turn("assistant", said))
    cached_ids = render(tokenizer, history, reply=False)
    cache = engine.prefill(cached_ids)
    whole = render(tokenizer, conversation("", second, history), reply=True)
    joined = join(whole, cache, cached_ids)
    kept = len(joined.prefix) if joined.prefix is not None else 0
    assert [*cached_ids[:kept], *joined.suffix] == whole
    assert joined.suffix


def test_answers_on_a_cache_and_on_text_are_equal_when_the_seam_merges_tokens():
    engine, tokenizer = tiny_engine(), tiny_tokenizer()
    history = conversation("be brief", "the code of room seven is re")
    cached = render(tokenizer, history, reply=False)
    whole = render(tokenizer, conversation("", "member the answer", history), reply=True)
    joined = join(whole, engine.prefill(cached), cached)
    assert joined.prefix is not None
    assert len(joined.prefix) < len(cached)  # the end of the turn was cut off: the turn went on
    on_cache = engine.generate([Request(joined.suffix, joined.prefix, max_new_tokens=12)])[0]
    on_text = engine.generate([Request(tuple(whole), max_new_tokens=12)])[0]
    assert on_cache.token_ids == on_text.token_ids


def test_nothing_shared_means_no_prefix_and_all_shared_leaves_one_token():
    cache = tiny_engine().prefill([5, 6, 7])
    assert join([8, 9], cache, [5, 6, 7]).prefix is None
    joined = join([5, 6, 7], cache, [5, 6, 7])
    assert joined.suffix == (7,)
    assert joined.prefix is not None
    assert joined.prefix.next_position == 2
    assert join([1, 2], None, ()).suffix == (1, 2)


def test_turns_of_one_role_are_merged():
    turns = append_turn([Turn("user", "a")], Turn("user", "b"))
    assert turns == (Turn("user", "a\n\nb"),)
    assert append_turn(turns, Turn("assistant", "c"))[-1] == Turn("assistant", "c")


def test_instructions_are_told_once():
    history = conversation("be brief", "one")
    assert conversation("be brief", "two", history)[-1].content == "one\n\ntwo"
    assert conversation("be long", "two", history)[-1].content == "one\n\nbe long\n\ntwo"


def test_a_model_without_a_template_gets_paragraphs():
    bare = copy(tiny_tokenizer())
    bare.chat_template = None
    ids = render(bare, [Turn("system", "a"), Turn("user", "b")], reply=True)
    assert bare.decode(ids) == "a\n\nb\n\n"


def test_a_template_that_refuses_is_a_clear_error():
    strict = copy(tiny_tokenizer())
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ModelError, match="roles must alternate"):
        render(strict, [Turn("user", "a")], reply=True)


@settings(max_examples=25, deadline=None)
@given(system=words, first=words, prompt=st.text(alphabet="xyz?é漢 ", min_size=1, max_size=12))
def test_a_prompts_own_words_are_found_in_its_rendering(system, first, prompt):
    tokenizer = tiny_tokenizer()
    history = conversation(system, first)
    whole, span = prompt_span(tokenizer, "be brief", prompt, history)
    assert whole == render(tokenizer, conversation("be brief", prompt, history), reply=True)
    assert 0 <= span.start < span.stop <= len(whole)
    assert prompt.strip() in tokenizer.decode(whole[span])
    frame = tokenizer.decode([*whole[: span.start], *whole[span.stop :]])
    assert len(frame) >= len("be brief"), "what everybody says around a prompt is not the prompt"


def test_a_prompt_without_words_is_looked_for_in_the_whole_turn():
    whole, span = prompt_span(tiny_tokenizer(), "be brief", "", conversation("", "red"))
    assert span == slice(0, len(whole))
