"""The folder that payloads wait in, and the pipes that lead there."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentflow.errors import PayloadError
from agentflow.exchange.inbox import Inbox, InboxFullError
from agentflow.exchange.received import Received
from agentflow.exchange.receiver import Receiver
from agentflow.exchange.streams import take_all
from agentflow.exchange.ticket import WINDOW, Ticket
from agentflow.kv.wire import seal_payload, write_payload
from tests.exchange.conftest import KEY, TOKEN, Open, note, words_of
from tests.kv.samples import payload_of, payloads, random_cache, same_payload


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".reader.lock")


def file_of(text: str, key: bytes | None = None) -> bytes:
    return b"".join(seal_payload(note(text), key=key)[1])


def test_payloads_come_out_in_the_order_in_which_they_were_put_and_are_gone_then(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "new" / "inbox")
    for n in range(20):
        inbox.put(note(str(n)))
    assert [words_of(p) for p in inbox.payloads(timeout=0)] == [str(n) for n in range(20)]
    assert left(inbox.folder) == []


def test_a_payload_stays_until_the_next_is_asked_for(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put(note("a"))
    inbox.put(note("b"))
    for payload in inbox.payloads():
        assert words_of(payload) == "a"
        break
    for payload in inbox.payloads():
        if words_of(payload) == "b":
            break
    assert [words_of(p) for p in inbox.payloads(timeout=0)] == ["b"]


def test_a_payload_that_was_read_stays_usable_when_its_file_is_gone(tmp_path: Path) -> None:
    inbox, payload = Inbox(tmp_path), payload_of(random_cache(50))
    inbox.put(payload)
    [found] = inbox.payloads(timeout=0)
    assert same_payload(found, payload)


def test_what_another_program_puts_there_is_found_and_what_is_none_is_set_aside(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, key=KEY)

    def others() -> None:
        time.sleep(0.3)
        (tmp_path / "1.safetensors").write_bytes(b"nothing of ours")
        write_payload(note("unsigned"), tmp_path / "2.safetensors")
        write_payload(note("signed"), tmp_path / "3.safetensors", key=KEY)

    thread = threading.Thread(target=others)
    thread.start()
    assert [words_of(p) for p in itertools.islice(inbox.payloads(timeout=20), 1)] == ["signed"]
    thread.join()
    assert left(tmp_path) == ["1.refused", "2.refused", "3.safetensors"]


def test_a_second_reader_of_a_folder_is_refused(tmp_path: Path) -> None:
    Inbox(tmp_path).put(note("a"))
    first = Inbox(tmp_path).payloads()
    next(first)
    with pytest.raises(PayloadError, match="Another program reads"):
        next(Inbox(tmp_path).payloads(timeout=0))
    first.close()
    assert len(list(Inbox(tmp_path).payloads(timeout=0))) == 1


def test_waiting_ends_with_its_time_or_when_the_inbox_is_closed(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    start = time.monotonic()
    assert list(inbox.payloads(timeout=0.3)) == []
    assert 0.2 < time.monotonic() - start < 5
    threading.Timer(0.3, inbox.close).start()
    assert list(inbox.payloads()) == []
    inbox.put(note("late"))
    assert [words_of(p) for p in inbox.payloads()] == ["late"]


def test_an_inbox_that_is_full_takes_no_more(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, capacity=len(file_of("a")) + 3)
    inbox.put(note("a"))
    with pytest.raises(InboxFullError, match="full"):
        inbox.put(note("b"))
    raw = file_of("c")
    with pytest.raises(InboxFullError):
        inbox.take(io.BytesIO(raw), len(raw))
    assert len(left(tmp_path)) == 1


def test_a_folder_that_can_be_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PayloadError, match="no inbox"):
        Inbox(tmp_path / "file")


@pytest.mark.parametrize("kind", sorted(payloads()))
def test_payloads_go_through_a_pipe_one_behind_the_other(kind: str, tmp_path: Path) -> None:
    payload, inbox = payloads()[kind], Inbox(tmp_path, key=KEY)
    raw = b"".join(seal_payload(payload, key=KEY)[1])
    assert len(list(take_all(io.BytesIO(file_of("first", KEY) + raw * 2), inbox))) == 3
    first, second, third = inbox.payloads(timeout=0)
    assert words_of(first) == "first"
    assert same_payload(second, payload)
    assert same_payload(third, payload)


def headed(head: bytes) -> bytes:
    return len(head).to_bytes(8, "little") + head


SPOILT = {
    "cut in its tensors": (b"".join(seal_payload(payload_of(random_cache(5)))[1])[:-5], "cut short"),
    "cut in its head": (file_of("x")[:-5], "not a payload"),
    "cut at once": (b"abc", "no payload"),
    "something else": (b"PK\3\4" * 100, "no payload"),
    "JSON of another kind": (headed(b"[]"), "not a payload"),
    "sizes that are none": (headed(b'{"a": {"data_offsets": [0, []]}}'), "whole numbers"),
    "a changed byte": (file_of("xyz").replace(b"xyz", b"xyy"), "digest"),
    "too large": (file_of("x" * 5000), "4,000 are allowed"),
    "too large a head": ((1 << 40).to_bytes(8, "little"), "no payload"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_wrong_in_a_pipe_is_said_and_what_came_before_is_kept(how: str, tmp_path: Path) -> None:
    raw, words = SPOILT[how]
    inbox = Inbox(tmp_path)
    with pytest.raises(PayloadError, match=words):
        list(take_all(io.BytesIO(file_of("good") + raw), inbox, max_bytes=4000))
    assert [words_of(p) for p in inbox.payloads(timeout=0)] == ["good"]
    assert left(tmp_path) == []


def test_nonces_are_kept_for_as_long_as_their_tickets_live(tmp_path: Path) -> None:
    now = int(time.time())
    old, new = Ticket(now - WINDOW - 5, "a" * 32, "d"), Ticket(now, "b" * 32, "d")
    received = Received(tmp_path / "r")
    received.stored(old)
    received.stored(new)
    received.close()
    (tmp_path / "r").write_text((tmp_path / "r").read_text() + f"{now} cut")  # by a crash
    again = Received(tmp_path / "r", ["c" * 32])
    assert [again.begin(n * 32) for n in "abcd"] == ["", "stored", "stored", ""]
    assert again.begin("d" * 32) == "arriving"
    again.end("d" * 32)
    assert again.begin("d" * 32) == ""
    again.close()


def test_the_list_of_nonces_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.exchange.received._STALE", 10)
    received, old = Received(tmp_path / "r"), int(time.time()) - WINDOW - 5
    for n in range(200):
        received.stored(Ticket(old, f"{n:032x}", "d"))
    received.close()
    assert len((tmp_path / "r").read_text().splitlines()) < 60


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"token": "short"}, "16"),
        ({"token": "words with blanks in it"}, "visible ASCII"),
        ({"token": "ä" * 20}, "ASCII"),
        ({"token": TOKEN, "host": "0.0.0.0"}, "must be signed"),
        ({"token": TOKEN, "host": ""}, "must be signed"),
        ({"token": TOKEN, "host": "no.such.host.invalid", "key": KEY}, "listen"),
        ({"token": TOKEN, "port": 70_000}, "listen"),
    ],
)
def test_a_receiver_that_would_be_unsafe_or_nowhere_is_refused(
    how: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(PayloadError, match=words):
        Receiver(tmp_path / "inbox", **how)


def test_beyond_loopback_a_key_is_enough(open_receiver: Open) -> None:
    assert open_receiver(host="0.0.0.0", key=KEY).url.startswith("http://0.0.0.0:")


def test_a_port_that_is_taken_and_a_second_receiver_of_a_folder_are_refused(open_receiver: Open) -> None:
    receiver = open_receiver()
    port = receiver._server.server_address[1]
    with pytest.raises(PayloadError, match="listen"):
        open_receiver("other", port=port)
    with pytest.raises(PayloadError, match="Another program receives"):
        open_receiver()
    receiver.close()
    open_receiver("other", port=port)
    open_receiver()


KILLED = """
import os, sys
from pathlib import Path
from agentflow.exchange.receiver import Receiver
receiver = Receiver(Path(sys.argv[1]), token=sys.argv[2], on_stored=lambda path: print("stored", flush=True))
print(receiver.url, flush=True)
"""


def test_a_receiver_that_is_killed_leaves_whole_payloads_and_its_next_one_clears_the_rest(
    tmp_path: Path, open_receiver: Open
) -> None:
    import socket
    from urllib.parse import urlsplit

    from tests.exchange.conftest import Letter, ask

    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "inbox"), TOKEN], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    place = urlsplit(process.stdout.readline().strip())
    whole, half = Letter.of(note("whole")), Letter.of(note("half" * 1000))
    with socket.create_connection((place.hostname, place.port)) as first:
        first.sendall(whole.raw)
        assert b"201" in first.recv(100)
    with socket.create_connection((place.hostname, place.port)) as second:
        second.sendall(half.raw[:-100])
        for _ in range(100):
            if list((tmp_path / "inbox").glob(".*.part")):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    process.stdout.close()
    assert list((tmp_path / "inbox").glob(".*.part"))
    os.truncate(tmp_path / "inbox" / ".received", 0)  # as if it had been killed before the line was written
    receiver = open_receiver()
    assert not list((tmp_path / "inbox").glob(".*.part"))
    assert ask(receiver, whole.raw).status == 409
    assert ask(receiver, half.raw).status == 201
    assert [words_of(p)[:5] for p in receiver.payloads(timeout=0)] == ["whole", "halfh"]
