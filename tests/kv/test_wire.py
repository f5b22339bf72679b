from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from agentflow.errors import PayloadError
from agentflow.kv import disk, sealed
from agentflow.kv.bodies import CacheBody, CodesBody, QuantizedBody, TextBody, Turn
from agentflow.kv.cache import KVCache
from agentflow.kv.payload import Header, Payload
from agentflow.kv.wire import describe, read_payload, seal_payload, write_payload
from tests.kv.samples import payload_of, payloads, random_cache, random_entries, same_payload

KINDS = sorted(payloads())
KEY = b"a shared key"


def digest_of(payload: Payload) -> str:
    return seal_payload(payload)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_what_is_written_is_read_back_bit_for_bit(kind: str, key: bytes | None, tmp_path: Path) -> None:
    payload = payloads()[kind]
    path = tmp_path / "new" / "folder" / "p.safetensors"
    digest = write_payload(payload, path, key=key)
    assert same_payload(read_payload(path, key=key), payload)
    assert digest == digest_of(payload)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_any_safetensors_reader_opens_a_payload(kind: str, tmp_path: Path) -> None:
    payload = payloads()[kind]
    digest = write_payload(payload, tmp_path / "p")
    with safe_open(tmp_path / "p", framework="pt") as file:
        assert file.metadata()["digest"] == digest
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    assert sum(t.nbytes for t in tensors.values()) <= payload.nbytes
    if isinstance(payload.body, CacheBody):
        assert torch.equal(tensors["layers.1.key"], payload.body.cache.keys[1])


def test_a_payload_that_was_read_is_usable_and_writing_to_it_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p"
    write_payload(payload_of(random_cache(4)), path)
    body = read_payload(path).body
    assert isinstance(body, CacheBody)
    longer = body.cache.extend(*random_entries(2))
    assert longer.next_position == 6
    body.cache.keys[0].zero_()
    assert same_payload(read_payload(path), payload_of(random_cache(4)))


def test_a_file_that_is_replaced_stays_as_it_was_for_who_has_it_open(tmp_path: Path) -> None:
    first, second = payload_of(random_cache(50)), payload_of(random_cache(3, seed=1))
    write_payload(first, tmp_path / "p")
    held = read_payload(tmp_path / "p")
    write_payload(second, tmp_path / "p")
    assert same_payload(held, first)
    assert same_payload(read_payload(tmp_path / "p"), second)


def test_the_digest_is_of_header_and_body_and_not_of_stats() -> None:
    payload = payload_of(random_cache(4))
    assert digest_of(payload.with_stats(seconds=1.0)) == digest_of(payload_of(random_cache(4)))
    other = Payload(Header("cache", "someone else"), payload.body)
    assert digest_of(other) != digest_of(payload)


def test_a_growing_cache_has_the_digest_and_file_of_a_settled_one(tmp_path: Path) -> None:
    shape = ((3, 64, 64),) * 2  # large enough to be written head by head
    grown = random_cache(40, layers=shape).extend(*random_entries(8, layers=shape))
    settled = KVCache(
        tuple(k.contiguous() for k in grown.keys), tuple(v.contiguous() for v in grown.values), grown.positions, 48
    )
    assert not grown.keys[0].is_contiguous()
    assert write_payload(payload_of(grown), tmp_path / "a") == write_payload(payload_of(settled), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_large_files_are_hashed_while_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_AHEAD", 1 << 16)
    monkeypatch.setattr(sealed, "_WORTH_WAITING", 1 << 10)
    payload = payload_of(random_cache(300, layers=((3, 64, 64),) * 4))
    assert write_payload(payload, tmp_path / "p") == digest_of(payload)
    assert same_payload(read_payload(tmp_path / "p"), payload)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_sealed_blocks_are_the_bytes_of_the_file(kind: str, key: bytes | None, tmp_path: Path) -> None:
    digest, blocks = seal_payload(payloads()[kind], key=key)
    assert digest == write_payload(payloads()[kind], tmp_path / "p", key=key)
    assert b"".join(blocks) == (tmp_path / "p").read_bytes()


def test_sealing_copies_no_tensor() -> None:
    payload = payload_of(random_cache(40))
    assert isinstance(payload.body, CacheBody)
    _, blocks = seal_payload(payload)
    starts = {np.frombuffer(block, np.uint8).ctypes.data for block in blocks}
    assert {t.data_ptr() for t in payload.body.cache.keys} <= starts


def test_a_file_that_fails_its_check_never_gets_its_name(tmp_path: Path) -> None:
    def refuse(part: Path) -> None:
        assert part.read_bytes() == b"complete"
        raise PayloadError("no")

    with pytest.raises(PayloadError, match="no"), disk.whole_file(tmp_path / "p", refuse) as handle:
        os.write(handle, b"complete")
    assert not list(tmp_path.iterdir())


def test_another_payload_than_the_one_asked_for_is_refused(tmp_path: Path) -> None:
    write_payload(payloads()["text"], tmp_path / "p")
    with pytest.raises(PayloadError, match="another payload"):
        read_payload(tmp_path / "p", digest="0" * 64)


@pytest.mark.parametrize("stage", ["first", "middle", "sync", "rename"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_an_interrupted_write_leaves_nothing_behind_and_the_old_file_whole(
    stage: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = payloads()["text"], payload_of(random_cache(2000))
    path = tmp_path / "p"
    write_payload(old, path)
    calls = 0

    def fail(*_: Any) -> Any:
        raise error

    real = os.writev

    def fail_later(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        return fail() if calls > (0 if stage == "first" else 3) else real(*arguments)

    with monkeypatch.context() as patch:
        if stage == "sync":
            patch.setattr(os, "fsync", fail)
        elif stage == "rename":
            patch.setattr(Path, "replace", fail)
        else:
            patch.setattr(os, "writev", fail_later)
        expected = PayloadError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            write_payload(new, path)
    if isinstance(error, OSError):
        assert "can't be written: No space left on device" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    assert same_payload(read_payload(path), old)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, writev = os.write, os.writev
    monkeypatch.setattr(os, "write", lambda handle, block: write(handle, block[:100]))
    monkeypatch.setattr(os, "writev", lambda handle, blocks: writev(handle, [b[:60] for b in blocks][:1]))
    payload = payload_of(random_cache(30))
    write_payload(payload, tmp_path / "p")
    assert same_payload(read_payload(tmp_path / "p"), payload)


def test_a_system_without_vectored_writes_writes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = payloads()["growing"]
    write_payload(payload, tmp_path / "a")
    monkeypatch.delattr(disk.os, "writev")
    write_payload(payload, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_more_blocks_than_one_call_takes_are_written_in_order(tmp_path: Path) -> None:
    blocks = [memoryview(bytes([i % 251, i // 251])) for i in range(2500)]
    with disk.whole_file(tmp_path / "f") as out:
        disk.write_blocks(out, blocks)
    assert (tmp_path / "f").read_bytes() == b"".join(blocks)


def test_a_payload_is_not_written_into_the_place_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="can't be written"):
        write_payload(payloads()["text"], tmp_path)
    assert not list(tmp_path.iterdir())


def write_often(path: Path, seed: int, times: int) -> None:
    for _ in range(times):
        write_payload(payload_of(random_cache(400, seed=seed)), path)


def test_two_processes_writing_one_path_leave_one_of_their_payloads_whole(tmp_path: Path) -> None:
    path = tmp_path / "p"
    choices = [payload_of(random_cache(400, seed=seed)) for seed in (1, 2)]
    write_payload(choices[0], path)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_often, args=(path, seed, 40)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(w.is_alive() for w in writers):
        found = read_payload(path)
        assert any(same_payload(found, choice) for choice in choices)
        reads += 1
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [0, 0]
    assert reads > 0
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_a_payload_that_no_receiver_would_accept_is_refused_at_the_sender(tmp_path: Path) -> None:
    cache = random_cache(4)
    header = Header("cache", "reader")
    for body, why in (
        (CacheBody(cache, (1, 2, 3), ()), "3 tokens for 4 positions"),
        (CacheBody(KVCache(cache.keys, cache.values, cache.positions.flip(0), 4), (0,) * 4, ()), "not increasing"),
        (CacheBody(KVCache(cache.keys, cache.values, cache.positions, 2), (0,) * 2, ()), "not increasing"),
        (
            CacheBody(replace(cache, rotary=torch.tensor([0, 2, 1, 3])), (0,) * 4, ()),
            "rotary positions are not increas",
        ),
        (
            CacheBody(replace(cache, rotary=torch.tensor([-1, 0, 1, 2])), (0,) * 4, ()),
            "rotary positions are not increas",
        ),
        (CacheBody(replace(cache, rotary=torch.arange(4.0)), (0,) * 4, ()), "rotary positions are others"),
        (CodesBody({"c": torch.zeros(2, dtype=torch.complex64)}), "complex64, which can't travel"),
        (TextBody((Turn("user", "x" * (65 << 20)),)), "can travel"),
    ):
        with pytest.raises(PayloadError, match=why):
            write_payload(Payload(header, body), tmp_path / "p")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_describe_tells_what_a_file_is_without_its_text(kind: str, tmp_path: Path) -> None:
    payload = payloads()[kind]
    write_payload(payload, tmp_path / "p")
    told = describe(tmp_path / "p")
    assert told["header"]["channel"] == payload.header.channel
    assert told["body"]["bytes"] == payload.nbytes
    assert told["file_bytes"] == (tmp_path / "p").stat().st_size
    assert "Be brief" not in str(told)
    if isinstance(payload.body, QuantizedBody):
        assert told["body"]["bits"] == payload.body.cache.bits


def test_describe_takes_a_cache_without_a_fingerprint(tmp_path: Path) -> None:
    payload = Payload(Header("cache", "s"), payload_of(random_cache(2)).body)
    write_payload(payload, tmp_path / "p")
    assert describe(tmp_path / "p")["header"]["fingerprint"] is None
