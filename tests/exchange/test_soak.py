"""Hours of traffic in minutes: what comes and goes must not leave memory or files behind."""

from __future__ import annotations

import gc
import os
import random
import time
from pathlib import Path

import psutil
import pytest

from agentflow.exchange.inbox import Inbox
from agentflow.kv.bodies import CacheBody
from agentflow.kv.payload import Payload
from agentflow.kv.wire import read_payload, write_payload
from tests.kv.samples import payload_of, random_cache, random_entries, same_payload

SECONDS = float(os.environ.get("AGENTFLOW_SOAK_SECONDS", "600"))
SHAPE = ((3, 64, 64),) * 8  # 12 KiB a position
TOLERANCE = 48 << 20  # of allocators and libraries; one leaked payload in a hundred would be far more
ROUNDS_BEFORE = 60  # until allocators, threads and imports have settled


def conversation(draw: random.Random, turns: int) -> Payload:
    """A cache that grows turn by turn, with a fork now and then."""
    cache = random_cache(draw.randrange(1, 300), layers=SHAPE, seed=draw.randrange(1 << 30))
    for _ in range(turns):
        longer = cache.extend(*random_entries(draw.randrange(1, 80), layers=SHAPE))
        cache.extend(*random_entries(3, layers=SHAPE))
        cache = longer
    return payload_of(cache.before(draw.randrange(1, cache.next_position + 1)))


def one_round(inbox: Inbox, path: Path, draw: random.Random) -> None:
    payload = conversation(draw, turns=draw.randrange(6))
    if draw.random() < 0.3:
        payload = payload.quantized(draw.choice([4, 8]))
    write_payload(payload, path)
    assert same_payload(read_payload(path), payload)
    inbox.put(payload)
    if draw.random() < 0.2:
        for found in inbox.payloads(timeout=0):
            body = found.dequantized().body
            assert isinstance(body, CacheBody)
            body.cache.extend(*random_entries(5, layers=SHAPE))


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_traffic_leaves_neither_memory_nor_files_nor_descriptors(tmp_path: Path) -> None:
    draw, inbox = random.Random(0), Inbox(tmp_path / "inbox")
    process, rounds = psutil.Process(), 0
    for _ in range(ROUNDS_BEFORE):
        one_round(inbox, tmp_path / "p", draw)
    before, files = resident(), process.num_fds()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        one_round(inbox, tmp_path / "p", draw)
        rounds += 1
    assert all(inbox.payloads(timeout=0))
    after = resident()
    assert rounds > 10
    assert after - before < TOLERANCE, f"{(after - before) / 2**20:.1f} MiB more after {rounds} rounds"
    assert process.num_fds() <= files
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [".reader.lock", "p"]
