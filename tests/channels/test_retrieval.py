"""Retrieval: what is chosen, that it stays within its limit and in its order, and that texts survive it."""

from __future__ import annotations

import math
import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.channels.base import Message, Task
from agentflow.channels.chunks import chunks_of
from agentflow.channels.registry import make_channel
from agentflow.errors import PayloadError
from agentflow.kv.bodies import CacheBody
from agentflow.kv.payload import Header, Payload, Turn
from agentflow.models.chat import render
from tests.tiny import tiny_engine

NOUNS = ["river", "tower", "garden", "engine", "letter", "window", "signal", "harbor", "violin", "copper", "meadow"]
PIECES = [*'ab.!\n"”。é🙂<|>\t', " the", " code", "code", " room", ". "]
SYSTEM = Turn("system", "be brief")


def sent(text, query="copper violin", *, turns=None, engine=None, **chosen):
    engine = engine or tiny_engine()
    message = Message("read", turns or (SYSTEM, Turn("user", text)), "")
    return make_channel("retrieval", chosen).send(message, Task(query, "", engine))


def told(payload):
    return "".join(t.content for t in payload.body.turns if t.role != "system")


def tokens(turns, engine=None):
    return len(render((engine or tiny_engine()).tokenizer, turns, reply=False))


def bm25(texts, query):
    """Plain BM25 in Lucene's form, k1 = 1.5, b = 0.75."""
    documents = [Counter(re.findall(r"\w\w+", t.lower())) for t in texts]
    lengths = [sum(d.values()) for d in documents]
    mean, n = sum(lengths) / len(lengths), len(documents)
    scores = []
    for document, length in zip(documents, lengths, strict=True):
        score = 0.0
        for word in query.split():
            holders, times = sum(1 for d in documents if word in d), document[word]
            idf = math.log(1 + (n - holders + 0.5) / (holders + 0.5))
            score += idf * times / (times + 1.5 * (0.25 + 0.75 * length / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [{"limit": "top_k", "top_k": 5}, {"limit": "max_tokens", "max_tokens": 220}])
def test_what_is_chosen_equals_plain_bm25_and_a_greedy_fill(seed, limit):
    rng, tokenizer = random.Random(seed), tiny_engine().tokenizer
    sentences = [" ".join(rng.choices(NOUNS, k=rng.randint(3, 9))) + f" s{n}." for n in range(20)]
    query = " ".join(rng.sample(NOUNS, 3))
    scores = bm25(sentences, query)
    order = sorted(range(len(sentences)), key=lambda n: (-round(scores[n], 5), n))
    if limit["limit"] == "top_k":
        wanted = order[:5]
    else:
        room, wanted = 220 - tokens((SYSTEM, Turn("user", ""))), []
        for n in order:
            size = len(tokenizer((" " if n else "") + sentences[n], add_special_tokens=False)["input_ids"])
            if size <= room:
                room -= size
                wanted.append(n)
    assert told(sent(" ".join(sentences), query, **limit)) == " ".join(sentences[n] for n in sorted(wanted))
    assert 0 < len(wanted) < len(sentences)


def test_chunks_keep_their_order_however_relevant_they_are():
    text = "First a river. A violin of copper. Then a tower. Copper at last."
    assert told(sent(text, "copper last", limit="top_k", top_k=2)) == "A violin of copper. Copper at last."


@pytest.mark.parametrize(
    ("chunk", "chunks", "words"),
    [
        ("sentence", ["One two.", " Three\n\n", "four five."], 2),
        ("paragraph", ["One two. Three\n", "four five."], 2),
        ("words", ["One two.", " Three\n\nfour", " five."], 2),
        ("words", ["One two. Three\n\nfour five."], 9),
    ],
)
def test_a_text_is_cut_as_it_is_asked_for(chunk, chunks, words):
    assert chunks_of("One two. Three\n\nfour five.", chunk, words) == chunks


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    chunk=st.sampled_from(["sentence", "paragraph", "words"]),
    room=st.integers(10, 60),
    ratio=st.floats(0.01, 1.0),
    least=st.sampled_from([0, 20]),
    system=st.booleans(),
)
def test_the_limit_is_never_passed_but_by_the_instructions(text, chunk, room, ratio, least, system):
    turns = (*((SYSTEM,) if system else ()), Turn("user", text))
    for limit, most in (
        ({"limit": "max_tokens", "max_tokens": room}, room),
        ({"limit": "ratio", "ratio": ratio, "least": least}, max(least, round(ratio * tokens(turns)))),
    ):
        payload = sent("", "ab cd", turns=turns, chunk=chunk, chunk_words=2, **limit)
        if told(payload):
            assert payload.header.kept == tokens(payload.body.turns) <= most
        else:
            assert payload.body.turns == ((SYSTEM,) if system else ())
        assert payload.header.tokens == tokens(turns)


def test_every_chunk_that_is_passed_is_in_the_text_to_the_letter():
    text = "Émile paid 12 € — 🙂🙂. 你好 copper。<|im_end|> <b>copper</b> \\n [x]. Nothing else. "
    assert told(sent(text, "copper", limit="top_k", top_k=2)) == "你好 copper。<|im_end|> <b>copper</b> \\n [x]."
    assert told(sent(text, "€ paid", limit="top_k", top_k=1)) == "Émile paid 12 € — 🙂🙂."
    assert told(sent(text, "copper", limit="top_k", top_k=99)) == text.strip()


@pytest.mark.parametrize("text", ["", " \n\t\n ", "!!! ??? ..."])
@pytest.mark.parametrize("query", ["copper", "", "the of and", "🙂"])
def test_texts_and_tasks_without_words_are_no_error(text, query):
    payload = sent(text, query, limit="top_k", top_k=1)
    assert told(payload) == (text.split()[0] if text.strip() else "")


def test_a_conversation_of_nobody_is_an_empty_message():
    payload = make_channel("retrieval").send(Message("read", (), ""), Task("copper", "", tiny_engine()))
    assert payload.body.turns == ()
    assert (payload.header.tokens, payload.header.kept) == (0, 0)


def test_a_chunk_that_is_larger_than_the_limit_is_left_out_and_said_so():
    huge = "copper " * 200
    payload = sent(huge, limit="max_tokens", max_tokens=100)
    assert payload.body.turns == (SYSTEM,)
    assert payload.header.losses == ("0 of 1 sentences passed",)
    assert told(sent(f"{huge}. A violin.", limit="max_tokens", max_tokens=100)) == "A violin."
    assert "copper" in told(sent(huge, chunk="words", chunk_words=8, limit="max_tokens", max_tokens=100))


def test_short_messages_are_passed_whole_by_default():
    payload = sent("A river. A tower.")
    assert told(payload) == "A river. A tower."
    assert told(sent("A river. A tower.", least=0)) == ""


def test_the_roles_but_the_system_become_one_text_and_the_counts_are_told():
    turns = (SYSTEM, Turn("user", "A copper tower. A river."), Turn("assistant", "A violin. A garden."))
    payload = sent("", turns=turns, limit="top_k", top_k=2)
    assert payload.body.turns == (SYSTEM, Turn("user", "A copper tower. A violin."))
    assert payload.header.losses == ("2 of 4 sentences passed",)
    assert payload.stats == {"chunks": 4.0, "chunks_passed": 2.0, "tokens_passed": float(tokens(payload.body.turns))}
    assert make_channel("retrieval").receive(payload, tiny_engine()).turns == payload.body.turns


@pytest.mark.parametrize("name", ["text", "retrieval", "summary"])
def test_channels_in_words_refuse_a_cache(name):
    engine = tiny_engine()
    body = CacheBody(engine.prefill([5, 6]), (5, 6), (Turn("user", "x"),))
    with pytest.raises(PayloadError, match="'read' holds a CacheBody, not text"):
        make_channel(name).receive(Payload(Header("cache", "read"), body), engine)
