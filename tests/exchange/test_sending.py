"""Payloads from `send_payload` to a reader: whole, each once, whatever happens on the way."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentflow.channels.registry import make_channel
from agentflow.errors import PayloadError
from agentflow.exchange import sender
from agentflow.exchange.receiver import Limits, Receiver
from agentflow.exchange.sender import send_payload
from agentflow.kv.bodies import CacheBody, Turn
from agentflow.kv.payload import Header, Payload
from agentflow.models.requests import Request
from tests.exchange.conftest import KEY, TOKEN, Open, note, stored, words_of
from tests.kv.samples import payload_of, payloads, random_cache, same_payload
from tests.tiny import tiny_engine, words

SENDERS, EACH = 8, 125
SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.parametrize("kind", sorted(payloads()))
def test_every_kind_of_payload_arrives_bit_for_bit(kind: str, open_receiver: Open) -> None:
    receiver = open_receiver(key=KEY)
    digest = send_payload(payloads()[kind], receiver.url, token=TOKEN, key=KEY)
    [found] = receiver.payloads(timeout=0)
    assert same_payload(found, payloads()[kind])
    assert len(digest) == 64
    assert stored(receiver) == []


def test_a_cache_of_another_program_is_stood_on(open_receiver: Open) -> None:
    engine, ids = tiny_engine(), tuple(words(30))
    cache = engine.prefill(ids)
    payload = Payload(
        Header("cache", "reader", engine.fingerprint, 30, 30), CacheBody(cache, ids, (Turn("user", "hi"),))
    )
    receiver = open_receiver()
    send_payload(payload, receiver.url, token=TOKEN)
    channel = make_channel("cache", {})
    [context] = [channel.receive(found, engine) for found in receiver.payloads(timeout=0)]
    answers = engine.generate([Request((5, 6), prefix, max_new_tokens=5) for prefix in (cache, context.cache)])
    assert answers[0].token_ids == answers[1].token_ids


def send_many(url: str, number: int) -> None:
    for n in range(EACH):
        send_payload(note(f"payload {n}", f"sender-{number}"), url, token=TOKEN, key=KEY)


@pytest.mark.timeout(300)
def test_a_thousand_payloads_of_eight_senders_arrive_and_none_twice(open_receiver: Open) -> None:
    receiver = open_receiver(key=KEY, limits=Limits(connections=4))  # fewer than senders: some must come again
    others = [SPAWN.Process(target=send_many, args=(receiver.url, n)) for n in range(2)]
    threads = [threading.Thread(target=send_many, args=(receiver.url, n)) for n in range(2, SENDERS)]
    for worker in (*others, *threads):
        worker.start()
    found: Counter[tuple[str, str]] = Counter()
    order: dict[str, list[int]] = {}
    for payload in receiver.payloads(timeout=60):
        found[payload.header.sender, words_of(payload)] += 1
        order.setdefault(payload.header.sender, []).append(int(words_of(payload).split()[1]))
        if sum(found.values()) == SENDERS * EACH:
            break
    for worker in (*others, *threads):
        worker.join()
    assert found == {(f"sender-{n}", f"payload {i}"): 1 for n in range(SENDERS) for i in range(EACH)}
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert len(list(receiver.payloads(timeout=0))) == 1  # the last one, which nobody has finished with


def test_a_sender_waits_for_a_full_inbox_to_be_read(open_receiver: Open) -> None:
    receiver = open_receiver(limits=Limits(capacity=1500))

    send_payload(note("a" * 500), receiver.url, token=TOKEN)
    assert len(stored(receiver)) == 1
    found: list[str] = []

    def read() -> None:
        time.sleep(1.0)
        found.extend(words_of(payload)[0] for payload in receiver.payloads(timeout=5))

    reader = threading.Thread(target=read)
    reader.start()
    send_payload(note("b" * 500), receiver.url, token=TOKEN)
    reader.join()
    assert found == ["a", "b"]


def test_a_receiver_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    opened: list[Receiver] = []
    timer = threading.Timer(0.5, lambda: opened.append(Receiver(tmp_path / "inbox", token=TOKEN, port=port)))
    timer.start()
    send_payload(note("x"), f"http://127.0.0.1:{port}", token=TOKEN)
    with opened[0] as receiver:
        assert len(stored(receiver)) == 1


@contextmanager
def deaf_once(receiver: Receiver) -> Iterator[str]:
    """A proxy that forwards everything, but loses the first answer."""
    there = urlsplit(receiver.url)

    def serve(place: socket.socket) -> None:
        for number in range(2):
            client, _ = place.accept()
            with client, socket.create_connection((there.hostname, there.port)) as server:
                back = threading.Thread(target=forward, args=(server, client if number else None))
                back.start()
                threading.Thread(target=forward, args=(client, server), daemon=True).start()
                back.join()
                client.shutdown(socket.SHUT_RDWR)

    def forward(source: socket.socket, target: socket.socket | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if target is not None:
                    target.sendall(data)
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=serve, args=(place,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}/payloads"
        thread.join(5)


def test_a_payload_whose_answer_was_lost_is_stored_once(open_receiver: Open) -> None:
    receiver = open_receiver(key=KEY)
    with deaf_once(receiver) as url:
        send_payload(note("x"), url, token=TOKEN, key=KEY)
    assert len(stored(receiver)) == 1


def test_a_refusal_is_not_tried_again_and_heard_also_in_the_middle_of_a_large_body(
    open_receiver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender.time, "sleep", lambda seconds: pytest.fail("it was tried again"))
    receiver = open_receiver(limits=Limits(max_bytes=1 << 20))
    large = payload_of(random_cache(3000, layers=((8, 128, 128),) * 2))
    assert large.nbytes > 40 << 20
    with pytest.raises(PayloadError, match=r"\(413\).*allowed"):
        send_payload(large, receiver.url, token=TOKEN)
    with pytest.raises(PayloadError, match=r"\(401\).*token"):
        send_payload(large, receiver.url, token="another" * 4)
    assert stored(receiver) == []


def test_nobody_there_is_said_after_some_attempts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    with pytest.raises(PayloadError, match=r"can't be reached.*after 2 attempts"):
        send_payload(note("x"), f"http://127.0.0.1:{port}", token=TOKEN, attempts=2)


def test_a_silent_receiver_is_not_waited_for_longer_than_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(PayloadError, match="can't be reached"):
            send_payload(note("x"), url, token=TOKEN, attempts=2, patience=0.3)
        assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "url", ["ftp://x/payloads", "x", "http://", "http://user:secret@host/payloads", "http://h:99999"]
)
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(PayloadError, match="no address"):
        send_payload(note("x"), url, token=TOKEN)


def test_an_answer_of_something_else_is_told(tmp_path: Path) -> None:
    def serve(place: socket.socket) -> None:
        for _ in range(2):
            client, _ = place.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as place:
        threading.Thread(target=serve, args=(place,), daemon=True).start()
        with pytest.raises(PayloadError, match=r"\(302\): Found"):
            send_payload(note("x"), f"http://127.0.0.1:{place.getsockname()[1]}", token=TOKEN)
