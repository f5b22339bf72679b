"""A remote model: what is asked, what is made of the answer, and every way in which a server can fail."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import replace

import pytest

from agentflow.errors import ModelError
from agentflow.kv.payload import Turn
from agentflow.models import pacing
from agentflow.models.completions import Reply
from agentflow.models.pacing import retry_after
from agentflow.models.pool import EnginePool
from agentflow.models.remote import RemoteModel
from agentflow.models.requests import Request, Sampling
from agentflow.models.spec import resolve_model
from tests import endpoint as served

KEY = "sk-0123456789abcdef"
TURNS = (Turn("system", "be short"), Turn("user", "what is the code?"))
REQUEST = Request((), max_new_tokens=16)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    served.make_quick(monkeypatch)


@pytest.fixture
def server():
    with served.endpoint() as found:
        yield found


@pytest.fixture
def model(server):
    def made(**settings):
        return RemoteModel(resolve_model({"remote": {"url": server.url, "name": "m", **settings}}))

    return made


def test_words_go_there_and_words_come_back_with_the_tokens_that_the_server_counted(server, model):
    server.script = [served.say("the code is 7")]
    heard = []
    answer = model().answer(TURNS, replace(REQUEST, on_token=heard.append))
    assert (answer.text, answer.finish, "".join(heard)) == ("the code is 7", "end", "the code is 7")
    assert len(heard) == 4
    assert (answer.prefilled, answer.reused, answer.generated, answer.token_ids) == (12, 8, 3, ())
    assert answer.warnings == ()
    assert 0 < answer.first_token_seconds <= answer.seconds
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "what is the code?"}]
    wanted = {"model": "m", "messages": messages, "max_tokens": 16, "temperature": 0.0, "seed": 0}
    assert server.asked == [{**wanted, "stream": True, "stream_options": {"include_usage": True}}]


def test_sampling_seeds_and_stop_texts_are_passed_on(server, model):
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=40, seed=2**40 + 5)
    server.script = [served.say("one STOP two")]
    answer = model(stream=False, length_field="max_completion_tokens", extra={"reasoning_effort": "low"}).answer(
        TURNS, replace(REQUEST, sampling=sampling, stop=("STOP",))
    )
    body = server.asked[0]
    assert (body["temperature"], body["top_p"], body["top_k"], body["seed"], body["stop"]) == (
        0.7,
        0.9,
        40,
        5,
        ["STOP"],
    )
    assert (body["max_completion_tokens"], body["reasoning_effort"]) == (16, "low")
    assert not {"stream", "stream_options", "max_tokens"} & set(body)
    assert (answer.text, answer.finish) == ("one ", "stop")  # even of a server that knows no stop texts


def test_fields_that_a_server_refuses_are_left_out(server, model):
    model(omit=["temperature", "seed", "stream_options"]).answer(TURNS, REQUEST)
    assert set(server.asked[0]) == {"model", "messages", "max_tokens", "stream"}


def test_tokens_that_nobody_counted_are_estimated_and_marked(server, model):
    server.script = [served.say("the code is seven", usage=None)]
    answer = model().answer(TURNS, REQUEST)
    assert (answer.prefilled, answer.reused, answer.generated) == (2 + 4 + 5 + 4, 0, 5)
    assert "estimates" in answer.warnings[0]


def test_an_answer_at_its_limit_says_so(server, model):
    server.script = [served.say("the code", why="length")]
    assert model().answer(TURNS, REQUEST).finish == "length"


def test_a_server_that_does_not_stream_is_understood(server, model):
    whole = b'{"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}'
    server.script = [served.raw("application/json; charset=utf-8", whole)]
    assert model().answer(TURNS, REQUEST).text == "whole"


@pytest.mark.parametrize("stream", [True, False])
def test_half_characters_are_joined_or_replaced_before_anybody_hears_them(server, model, stream):
    halves = {"red \ud83d\ude00": "red \U0001f600", "red \ud83d": "red \ufffd", "\ude00 red": "\ufffd red"}
    for said, text in halves.items():
        server.script = [served.say(said)]
        heard = []
        answer = model(stream=stream).answer(TURNS, replace(REQUEST, on_token=heard.append))
        assert answer.text == "".join(heard) == text


def test_a_character_may_be_cut_between_two_events():
    reply, heard = Reply(), []
    for piece, why in (("a\ud83d", None), ("\ude00b\ud83d", None), ("", "stop")):
        heard.append(reply.take(json.dumps({"choices": [{"delta": {"content": piece}, "finish_reason": why}]})))
    assert heard == ["a", "\U0001f600b", "\ufffd"]
    assert reply.text == "".join(heard)


def test_connections_are_used_again(server, model):
    ports = []
    server.script = [lambda h, b: (ports.append(h.client_address), served.say("fine")(h, b))[1]]
    asked = model()
    for _ in range(3):
        asked.answer(TURNS, REQUEST)
    assert len(set(ports)) == 1


PASSING = {
    "429": (served.status(429, {"error": {"message": "slow down"}}), "429 Too Many Requests: slow down"),
    "500": (served.status(500, {"error": {"message": "it broke"}}), "500 Internal Server Error: it broke"),
    "503 of a proxy": (served.status(503, b"<html>nginx</html>"), "503 Service Unavailable"),
    "cut stream": (served.cut("the co", clean=True), "its answer was cut before the end"),
    "lost connection": (served.cut("the co"), "the connection was lost before the answer ended"),
    "bad JSON in a stream": (lambda h, _: (h.begin(), h.event("{nonsense"), h.end()), "something that is no JSON"),
    "bad JSON": (served.raw("application/json", b"{nonsense"), "something that is no JSON"),
    "JSON of another kind": (served.raw("application/json", b'{"hello": 1}'), "JSON that is no completion"),
    "a list": (served.raw("application/json", b"[1]"), "JSON that is no completion"),
    "content that is no text": (
        served.raw("application/json", b'{"choices": [{"message": {"content": [1]}}]}'),
        "content that is no text",
    ),
    "no choices": (served.raw("application/json", b'{"choices": []}'), "its answer was cut before the end"),
    "an error inside a stream": (served.failing_in_stream("out of memory", 500), "the server says: out of memory"),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_tried_again(server, model, fault):
    server.script = [PASSING[fault][0], PASSING[fault][0], served.say("at last")]
    answer = model().answer(TURNS, REQUEST)
    assert (answer.text, len(server.asked)) == ("at last", 3)
    assert answer.warnings[0].startswith("asked 3 times: ")
    assert PASSING[fault][1] in answer.warnings[0]


@pytest.mark.parametrize("fault", PASSING)
def test_what_does_not_pass_ends_in_one_error_after_all_tries(server, model, fault):
    server.script = [PASSING[fault][0]]
    with pytest.raises(ModelError) as error:
        model(max_retries=2).answer(TURNS, REQUEST)
    assert len(server.asked) == 3
    assert str(error.value).startswith(f"'m' ({server.url}) gave no answer in 3 tries: ")
    assert f"{PASSING[fault][1]} (3 times)." in str(error.value)


LASTING = {
    "wrong key": (served.status(401, {"error": {"message": "who are you?"}}), "401 Unauthorized: who are you?"),
    "wrong name": (served.status(404, {"error": {"message": "no model m"}}), "is there a model 'm'?"),
    "wrong request": (served.status(400, {"detail": "seed is unknown"}), "400 Bad Request: seed is unknown."),
    "no money": (served.status(429, {"error": {"message": "pay", "code": "insufficient_quota"}}), "Requests: pay"),
    "another address": (served.status(308, "", Location="https://elsewhere/v1"), "sends requests to https://elsewhere"),
    "a web page": (served.raw("text/html", b"<html>hello</html>"), "text/html, not JSON. Is the address whole"),
    "filtered": (served.say("x", why="content_filter"), "its content filter held the answer back"),
    "an endless stream": (served.flood, "longer than 65,536 bytes (`max_bytes`)"),
    "an endless line": (lambda h, _: (h.begin(), h.event("y" * 90_000)), "longer than 65,536 bytes"),
    "a huge answer": (served.raw("application/json", b" " * 90_000), "longer than 65,536 bytes"),
    "a refusal in a stream": (served.failing_in_stream("too long a prompt", 400), "says: too long a prompt."),
    "an hour's patience": (served.status(429, "", Retry_After="3600"), "it asks for 3600 s of patience"),
}


@pytest.mark.parametrize("fault", LASTING)
def test_what_no_other_try_would_mend_is_asked_once(server, model, fault):
    server.script = [LASTING[fault][0]]
    with pytest.raises(ModelError) as error:
        model(max_bytes=1 << 16).answer(TURNS, REQUEST)
    assert len(server.asked) == 1
    assert LASTING[fault][1] in str(error.value)


def test_the_server_says_how_long_to_wait_and_everybody_does(server, model):
    server.script = [served.status(429, "", Retry_After="1"), served.say("fine")]
    asked = model()
    first = threading.Thread(target=asked.answer, args=(TURNS, REQUEST))
    first.start()
    while not server.asked:
        time.sleep(0.01)
    time.sleep(0.1)
    asked.answer(TURNS, REQUEST)  # another request meanwhile
    first.join()
    assert len(server.asked) == 3
    assert min(server.times[1:]) - server.times[0] >= 0.95


def test_a_wait_may_be_written_as_a_date():
    assert retry_after("2") == 2.0
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("Fri, 31 Dec 9999 23:59:59 GMT") > 3000
    assert [retry_after(text) for text in (None, "soon", "nan", "inf", "-3")] == [None, None, None, None, 0.0]


def test_waits_between_tries_grow_and_differ():
    many = [[pacing.backoff(n) for _ in range(20)] for n in range(1, 12)]
    for n, waits in enumerate(many):
        most = min(pacing.LONGEST_WAIT, pacing.FIRST_WAIT * 2**n)
        assert most / 2 <= min(waits) < max(waits) <= most


@pytest.mark.parametrize(
    ("answer", "settings", "words"),
    [
        (served.hang(), {"silence": 0.2}, "not a word for 0.2 s"),
        (served.stall("the"), {"silence": 0.2}, "not a word for 0.2 s"),
        (served.drip(), {"timeout": 0.3}, "no whole answer within 0.3 s"),
    ],
)
def test_a_server_that_keeps_silent_is_given_up_and_it_counts_as_a_timeout(server, model, answer, settings, words):
    server.script = [answer]
    start = time.monotonic()
    with pytest.raises(ModelError, match="in 2 tries") as error:
        model(max_retries=1, **settings).answer(TURNS, REQUEST)
    assert words in str(error.value)
    assert isinstance(error.value, TimeoutError)
    assert time.monotonic() - start < 5
    assert len(server.asked) == 2


def test_nobody_listens_there(model, server):
    asked = model(max_retries=1)
    server.shutdown()
    server.server_close()
    with pytest.raises(ModelError, match=r"it can't be reached \(2 times\)\. Is the server running\?"):
        asked.answer(TURNS, REQUEST)


def test_a_deadline_ends_an_answer_where_it_is(server, model):
    server.script = [served.stall("the code")]
    start = time.monotonic()
    answer = model().answer(TURNS, replace(REQUEST, deadline=0.4))
    assert (answer.text, answer.finish) == ("the code", "deadline")
    assert 0.35 < time.monotonic() - start < 3


def test_a_request_that_is_called_off_ends_at_once_and_the_server_hears_of_it(server, model):
    gone, off = threading.Event(), threading.Event()

    def endless(handler, _):
        handler.begin()
        try:
            while True:
                handler.event({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]})
                off.set()
                time.sleep(0.02)
        except OSError:
            gone.set()

    server.script = [endless]
    answer = model().answer(TURNS, replace(REQUEST, cancelled=off.is_set))
    assert answer.finish == "cancelled"
    assert gone.wait(5)


def test_no_more_requests_a_minute_than_agreed(server, model):
    asked = model(requests_per_minute=240)
    for _ in range(3):
        asked.answer(TURNS, REQUEST)
    gaps = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
    assert min(gaps) > 0.2


def test_no_more_requests_at_once_than_agreed(server, model):
    server.script = [served.say("fine", pause=0.1)]
    asked = model(max_concurrency=2)
    threads = [threading.Thread(target=asked.answer, args=(TURNS, REQUEST)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(server.asked), server.most_at_once) == (6, 2)


def test_the_key_comes_from_the_environment_and_is_told_to_nobody_else(server, model, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("A_KEY", KEY)
    server.script = [served.say(f"your key is {KEY}")]
    asked = model(key_env="A_KEY")
    answer = asked.answer(TURNS, REQUEST)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert answer.text == "your key is [key]"
    told = []
    for refusal in (
        served.status(401, {"error": {"message": f"{'x' * 290} {KEY} is wrong"}}),  # where words are shortened
        served.status(500, {"error": {"message": f"Incorrect API key: {KEY}"}}),
        served.failing_in_stream(f"bad {KEY}", 500),
    ):
        server.script = [refusal]
        with pytest.raises(ModelError) as error:
            model(key_env="A_KEY", max_retries=1).answer(TURNS, REQUEST)
        told += [str(error.value), repr(error.value)]
    assert "Is the key in A_KEY right?" in told[0]
    for text in (*told, repr(asked.spec), asked.spec.model_dump_json(), asked.mark, caplog.text):
        assert KEY[:6] not in text


def test_without_a_key_no_request_says_who_asks(server, model):
    model().answer(TURNS, REQUEST)
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(("value", "words"), [(None, "is not set"), (" ", "is not set"), ("a\nb", "holds no key")])
def test_a_key_that_can_not_be_sent_is_refused_before_anything_is(server, model, monkeypatch, value, words):
    if value is not None:
        monkeypatch.setenv("A_KEY", value)
    with pytest.raises(ModelError, match=f"A_KEY.*{words}|A_KEY {words}"):
        model(key_env="A_KEY")
    assert server.asked == []


def test_the_endpoint_says_what_it_serves(server, model):
    server.models = ["b", "a"]
    assert model().names() == ["a", "b"]
    server.models = None
    with pytest.raises(ModelError, match="404 Not Found: no list here"):
        model().names()


def test_what_only_an_engine_can_do_is_refused(model):
    with pytest.raises(ModelError, match="keeps no cache"):
        model().answer(TURNS, replace(REQUEST, max_new_tokens=0))
    with pytest.raises(ModelError, match="how likely"):
        model().answer(TURNS, replace(REQUEST, choices=((1,), (2,))))
    with pytest.raises(ModelError, match="no weights"):
        EnginePool().get(model().spec)


@pytest.mark.parametrize(
    ("remote", "words"),
    [
        ({"url": "http://u:secret@host/v1", "name": "m"}, "no user, password or query"),
        ({"url": "ftp://host", "name": "m"}, "must be an address"),
        ({"url": "http://host:99999/v1", "name": "m"}, "must be an address"),
        ({"url": "http://host/v1", "name": "m", "key_env": KEY}, "the name of an environment variable"),
        ({"url": "http://host/v1"}, "'remote.name' is missing"),
        ({"url": "http://host/v1", "name": "m", "time_out": 3}, "Did you mean 'timeout'"),
        ({"url": "http://host/v1", "name": "m", "max_retries": -1}, "at least 0"),
        ("http://host/v1", "'remote' is wrong"),
    ],
)
def test_wrong_settings_are_refused_and_no_secret_is_repeated(remote, words):
    with pytest.raises(ModelError) as error:
        resolve_model({"remote": remote})
    assert words.lower() in str(error.value).lower()
    assert "secret" not in str(error.value)
    assert KEY not in str(error.value)


def test_a_model_is_here_or_elsewhere():
    remote = {"url": "http://host/v1/", "name": "m"}
    spec = resolve_model({"remote": remote})
    assert (spec.model, spec.where, spec.remote.url) == ("m", "m at http://host/v1", "http://host/v1")
    for more in ({"source": "owner/name"}, {"device": "cuda"}, {"use": "smollm2-135m"}):
        with pytest.raises(ModelError, match="runs elsewhere"):
            resolve_model({"remote": remote, **more})


def test_what_answers_depend_on_is_in_the_mark_and_patience_is_not():
    def mark(**settings):
        return resolve_model({"remote": {"url": "http://host/v1", "name": "m", **settings}}).remote.mark

    assert mark() == mark(timeout=3, max_retries=0, key_env="K")
    assert len({mark(), mark(extra={"a": 1}), mark(name="n"), mark(omit=["seed"])}) == 4
