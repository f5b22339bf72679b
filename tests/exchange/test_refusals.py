"""Every way in which a request is refused, through real sockets: the status, and that nothing stays."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable

import psutil
import pytest

from agentflow.exchange.receiver import Limits
from agentflow.exchange.ticket import WINDOW
from tests.exchange.conftest import KEY, TOKEN, Letter, Open, answer_of, ask, connect, note, stored

Spoil = Callable[[Letter], None]


def header(name: str, value: str | None) -> Spoil:
    def spoil(letter: Letter) -> None:
        if value is None:
            del letter.headers[name]
        else:
            letter.headers[name] = value

    return spoil


def path(value: str) -> Spoil:
    return lambda letter: setattr(letter, "path", value)


def body(change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(letter: Letter) -> None:
        letter.body = change(letter.body)
        letter.headers["Content-Length"] = str(len(letter.body))

    return spoil


def method(value: str) -> Spoil:
    return lambda letter: setattr(letter, "method", value)


def unsigned_file(letter: Letter) -> None:
    letter.body = Letter.of(note("hello")).body


REFUSED: dict[str, tuple[Spoil, int, str]] = {
    "no token": (header("Authorization", None), 401, "token"),
    "a wrong token": (header("Authorization", f"Bearer {TOKEN}x"), 401, "token"),
    "a token of bytes": (header("Authorization", "Bearer \xff\xfe"), 401, "token"),
    "another scheme": (header("Authorization", f"Basic {TOKEN}"), 401, "token"),
    "another path": (path("/etc/passwd"), 404, "/payloads"),
    "a path that climbs": (path("/payloads/../x"), 404, "/payloads"),
    "a query": (path("/payloads?name=x"), 404, "/payloads"),
    "another method": (method("GET"), 405, "POST"),
    "no length": (header("Content-Length", None), 411, "Content-Length"),
    "pieces": (header("Transfer-Encoding", "chunked"), 411, "Content-Length"),
    "a negative length": (header("Content-Length", "-1"), 400, "whole number"),
    "a length in words": (header("Content-Length", "ten"), 400, "whole number"),
    "a huge length": (header("Content-Length", str(2 << 30)), 413, "allowed"),
    "no time": (header("AgentFlow-Time", None), 400, "AgentFlow-Time"),
    "no nonce": (header("AgentFlow-Nonce", None), 400, "AgentFlow-Nonce"),
    "a nonce that is a path": (header("AgentFlow-Nonce", "../../../../../../../../../../x"), 400, "AgentFlow-Nonce"),
    "no digest": (header("AgentFlow-Digest", None), 400, "AgentFlow-Digest"),
    "no signature": (header("AgentFlow-Signature", None), 403, "signed"),
    "a wrong signature": (header("AgentFlow-Signature", "0" * 64), 403, "signed"),
    "another nonce than was signed": (header("AgentFlow-Nonce", "0" * 32), 403, "signed"),
    "another time than was signed": (header("AgentFlow-Time", str(int(time.time()) - 60)), 403, "signed"),
    "another digest than was signed": (header("AgentFlow-Digest", "0" * 64), 403, "signed"),
    "a changed byte": (body(lambda raw: raw.replace(b"hello", b"hellp")), 422, "digest"),
    "an added byte": (body(lambda raw: raw + b"\0"), 422, "digest"),
    "a cut body that says so": (body(lambda raw: raw[:-8]), 422, "cut short"),
    "an empty body": (body(lambda raw: b""), 422, "cut short"),
    "something else": (body(lambda raw: b"PK\3\4" * 50), 422, "safetensors"),
    "a file without the key's signature": (unsigned_file, 422, "not signed"),
    "many headers": (lambda letter: letter.headers.update({f"X-{n}": "x" for n in range(200)}), 431, "read"),
    "a long header": (header("X-Long", "x" * 40_000), 431, "too long"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_spoilt_request_is_refused_and_nothing_stays(how: str, open_receiver: Open) -> None:
    receiver = open_receiver(key=KEY)
    letter = Letter.of(note("hello"), KEY)
    spoil, status, words = REFUSED[how]
    spoil(letter)
    answer = ask(receiver, letter.raw)
    assert (answer.status, words in answer.text) == (status, True), answer.text
    assert TOKEN not in answer.text
    assert stored(receiver) == []
    assert ask(receiver, Letter.of(note("hello"), KEY).raw).status == 201  # and the next one is served


def test_what_is_no_http_is_refused(open_receiver: Open) -> None:
    receiver = open_receiver()
    for raw in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"POST\r\n\r\n", b"POST /payloads HTTP/9.9\r\n\r\n"):
        assert ask(receiver, raw).status in (400, 505)
    assert ask(receiver, Letter.of(note("x")).raw).status == 201


def test_a_second_length_is_refused(open_receiver: Open) -> None:
    receiver, letter = open_receiver(), Letter.of(note("x"))
    raw = letter.raw.replace(b"Host: x\r\n", b"Host: x\r\nContent-Length: 3\r\n")
    assert ask(receiver, raw).status == 400
    assert stored(receiver) == []


@pytest.mark.parametrize("away", [-WINDOW - 60, WINDOW + 60], ids=["old", "of the future"])
def test_a_ticket_of_another_time_is_refused(away: int, open_receiver: Open) -> None:
    receiver = open_receiver(key=KEY)
    assert ask(receiver, Letter.of(note("x"), KEY, time=int(time.time()) + away).raw).status == 403
    assert stored(receiver) == []


def test_a_request_that_is_sent_again_is_refused_also_when_its_payload_is_read_and_the_receiver_is_another(
    open_receiver: Open,
) -> None:
    receiver, letter = open_receiver(key=KEY), Letter.of(note("x"), KEY)
    assert ask(receiver, letter.raw).status == 201
    assert ask(receiver, letter.raw).status == 409
    assert len(list(receiver.payloads(timeout=0))) == 1
    assert ask(receiver, letter.raw).status == 409
    receiver.close()
    assert ask(open_receiver(key=KEY), letter.raw).status == 409
    assert stored(receiver) == []


def test_too_large_a_payload_is_refused_before_it_is_sent(open_receiver: Open) -> None:
    receiver = open_receiver(limits=Limits(max_bytes=1000))
    letter = Letter.of(note("x" * 2000))
    letter.body = b""
    answer = ask(receiver, letter.raw)
    assert (answer.status, "1,000 are allowed" in answer.text) == (413, True)
    assert stored(receiver) == []


@pytest.mark.parametrize("said", [0, 30, -1], ids=["nothing", "half a head", "half a body"])
def test_a_sender_that_stops_talking_is_let_go(said: int, open_receiver: Open) -> None:
    receiver = open_receiver(limits=Limits(patience=0.3))
    raw = Letter.of(note("x" * 5000)).raw
    with connect(receiver) as connection:
        connection.sendall(raw[:said] if said >= 0 else raw[:-2000])
        assert answer_of(connection).status == 408
    assert stored(receiver) == []
    assert ask(receiver, Letter.of(note("x")).raw).status == 201


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_sender_that_drips_is_let_go(part: str, open_receiver: Open) -> None:
    receiver = open_receiver(limits=Limits(patience=0.5, least_rate=1e6))
    letter = Letter.of(note("x" * 5000))
    raw, at_once = letter.raw, 20 if part == "head" else len(letter.raw) - 4000
    start = time.monotonic()
    with connect(receiver) as connection:
        connection.sendall(raw[:at_once])
        connection.settimeout(0.05)
        while time.monotonic() - start < 10:  # a byte each 50 ms never lets it wait for half a second
            try:
                connection.sendall(raw[at_once : at_once + 1])
                at_once += 1
                first = connection.recv(1, socket.MSG_PEEK)
                assert first
                break
            except TimeoutError:
                continue
        connection.settimeout(10)
        assert answer_of(connection).status == 408
    assert time.monotonic() - start < 5
    assert stored(receiver) == []


def test_a_sender_that_goes_away_leaves_nothing_and_may_come_again(open_receiver: Open) -> None:
    receiver, letter = open_receiver(), Letter.of(note("x" * 5000))
    with connect(receiver) as connection:
        connection.sendall(letter.raw[:-2000])
    for _ in range(100):
        if ask(receiver, letter.raw).status == 201:
            break
        time.sleep(0.02)
    assert len(stored(receiver)) == 1


def test_above_its_number_of_connections_a_sender_is_told_to_come_again(open_receiver: Open) -> None:
    receiver = open_receiver(limits=Limits(connections=2))
    with connect(receiver) as first, connect(receiver) as second:
        first.sendall(b"POST")
        second.sendall(b"POST")
        time.sleep(0.3)
        answer = ask(receiver, Letter.of(note("x")).raw)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    for _ in range(100):
        if ask(receiver, Letter.of(note("x")).raw).status == 201:
            break
        time.sleep(0.02)
    assert len(stored(receiver)) == 1


def test_a_full_inbox_tells_senders_to_come_again(open_receiver: Open) -> None:
    letter = Letter.of(note("x" * 500))
    receiver = open_receiver(limits=Limits(capacity=len(letter.body) + 10))
    assert ask(receiver, letter.raw).status == 201
    answer = ask(receiver, Letter.of(note("y" * 500)).raw)
    assert (answer.status, answer.headers["Retry-After"], "full" in answer.text) == (503, "1", True)
    assert len(list(receiver.payloads(timeout=0))) == 1
    assert ask(receiver, Letter.of(note("y" * 500)).raw).status == 201


def test_the_same_request_twice_at_a_time_is_stored_once(open_receiver: Open) -> None:
    receiver, letter = open_receiver(), Letter.of(note("x" * 5000))
    with connect(receiver) as slow:
        slow.sendall(letter.raw[:-10])
        time.sleep(0.3)
        answer = ask(receiver, letter.raw)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        slow.sendall(letter.raw[-10:])
        assert answer_of(slow).status == 201
    assert ask(receiver, letter.raw).status == 409
    assert len(stored(receiver)) == 1


def test_a_place_that_takes_no_files_is_said(open_receiver: Open) -> None:
    receiver = open_receiver()
    shutil.move(receiver.inbox.folder, receiver.inbox.folder.with_name("gone"))
    receiver.inbox.folder.write_text("a file")
    answer = ask(receiver, Letter.of(note("x")).raw)
    assert (answer.status, str(receiver.inbox.folder) in answer.text) == (507, False)
    receiver.inbox.folder.unlink()
    shutil.move(receiver.inbox.folder.with_name("gone"), receiver.inbox.folder)


def test_a_body_is_asked_for_once_its_head_is_right(open_receiver: Open) -> None:
    receiver = open_receiver()
    for token, first in ((TOKEN, b"HTTP/1.1 100 "), ("wrong" * 4, b"HTTP/1.1 401 ")):
        letter = Letter.of(note("x"))
        letter.headers |= {"Authorization": f"Bearer {token}", "Expect": "100-continue"}
        raw = letter.raw
        with connect(receiver) as connection:
            connection.sendall(raw[: -len(letter.body)])
            assert connection.recv(len(first)) == first
            if token == TOKEN:
                connection.sendall(letter.body)
                assert b"201" in connection.recv(1 << 16) + connection.recv(1 << 16)
    assert len(stored(receiver)) == 1


def test_closing_breaks_off_what_is_still_coming(open_receiver: Open) -> None:
    receiver = open_receiver()
    with connect(receiver) as slow:
        slow.sendall(Letter.of(note("x" * 5000)).raw[:-100])
        time.sleep(0.2)
        start = time.monotonic()
        receiver.close()
        assert time.monotonic() - start < 5
    assert stored(receiver) == []


def test_many_refused_requests_leave_no_thread_and_no_descriptor(open_receiver: Open) -> None:
    receiver = open_receiver()
    raw = Letter.of(note("x")).raw.replace(TOKEN.encode(), b"x" * len(TOKEN))
    assert ask(receiver, raw).status == 401
    time.sleep(0.2)
    before = psutil.Process().num_fds()
    for _ in range(100):
        assert ask(receiver, raw).status == 401
    time.sleep(1.2)
    assert psutil.Process().num_fds() <= before + 2
