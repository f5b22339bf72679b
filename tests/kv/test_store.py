from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from agentflow.errors import PayloadError
from agentflow.kv.bodies import CacheBody
from agentflow.kv.disk import PART
from agentflow.kv.holders import Holder
from agentflow.kv.store import PayloadStore
from agentflow.kv.wire import payload_digest
from tests.kv.samples import payload_of, payloads, random_cache, same_payload


def sample(seed: int, n: int = 20) -> Any:
    return payload_of(random_cache(n, seed=seed))


SIZE = sample(0).nbytes


def files(root: Path) -> list[str]:
    return sorted(p.name for p in root.rglob("*.safetensors"))


@pytest.mark.parametrize("kind", sorted(payloads()))
@pytest.mark.parametrize("memory", [0, 1 << 30], ids=["disk", "memory"])
def test_every_kind_of_payload_comes_back_equal_with_its_stats(kind: str, memory: int, tmp_path: Path) -> None:
    payload = payloads()[kind].with_stats(encode=1.5)
    with PayloadStore(tmp_path, memory_bytes=memory) as store:
        digest = store.put(payload)
        assert digest == payload_digest(payload)
        known = same_payload(store.get(digest), payload)
        expected = payloads()[kind]
        del payload
        gc.collect()
        found = store.get(digest)
        assert known
        assert same_payload(found, expected)
        assert found.stats == {"encode": 1.5}
    assert same_payload(found, expected)  # also when its store is closed and its file is gone


def test_a_payload_in_memory_is_handed_out_by_reference_and_makes_no_file(tmp_path: Path) -> None:
    payload = sample(0)
    with PayloadStore(tmp_path) as store:
        digest = store.put(payload)
        assert store.get(digest) is payload
        assert files(tmp_path) == []
        assert store.usage().memory_bytes == payload.nbytes


def test_equal_payloads_are_kept_once_and_freed_with_the_last_reference(tmp_path: Path) -> None:
    with PayloadStore(tmp_path) as store:
        digest = store.put(sample(0))
        assert store.put(sample(0)) == digest
        store.retain(digest)
        assert store.usage().payloads == 1
        assert store.usage().memory_bytes == SIZE
        for _ in range(3):
            assert digest in store
            store.free(digest)
        assert digest not in store
        assert (store.usage().payloads, store.usage().memory_bytes) == (0, 0)


def test_the_digest_of_an_object_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("agentflow.kv.store.payload_digest", lambda p: calls.append(p) or payload_digest(p))
    payload = sample(0)
    with PayloadStore(tmp_path, memory_bytes=0) as store:
        for _ in range(3):
            store.put(payload)
        store.put(store.get(store.put(payload)))
    assert len(calls) == 1


@pytest.mark.parametrize("method", ["get", "free", "retain", "persist"])
def test_what_is_not_held_is_an_error_that_names_it(method: str, tmp_path: Path) -> None:
    with PayloadStore(tmp_path) as store:
        digest = store.put(sample(0))
        store.free(digest)
        with pytest.raises(PayloadError, match=f"No payload {digest[:12]}"):
            getattr(store, method)(digest)


def test_the_least_recently_used_go_to_disk_when_memory_is_full(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=3 * SIZE) as store:
        digests = [store.put(sample(seed)) for seed in range(3)]
        store.get(digests[0])
        fourth = store.put(sample(3))
        assert files(tmp_path) == [f"{digests[1]}.safetensors"]
        assert store.usage().memory_bytes == 3 * SIZE
        assert all(same_payload(store.get(d), sample(seed)) for seed, d in enumerate([*digests, fourth]))


def test_a_spilled_payload_is_read_once_for_all_who_use_it_and_let_go_after(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=0) as store:
        digest = store.put(sample(0))
        gc.collect()
        first = store.get(digest)
        assert store.get(digest) is first
        identity = first.body
        del first
        gc.collect()
        assert store.get(digest).body is not identity


def test_freeing_removes_the_file(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=0) as store:
        digest = store.put(sample(0))
        held = store.get(digest)
        assert store.usage().disk_bytes > SIZE
        store.free(digest)
        assert files(tmp_path) == []
        assert store.usage().disk_bytes == 0
        assert same_payload(held, sample(0))


def test_a_full_disk_budget_is_an_error_that_says_what_to_do_and_changes_nothing(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=2 * SIZE, disk_bytes=SIZE + 4000) as store:
        digests = [store.put(sample(seed)) for seed in range(3)]
        with pytest.raises(PayloadError, match=r"store is full: its files take .* bytes, and .* more") as caught:
            store.put(sample(3))
        assert "Free payloads" in str(caught.value)
        assert payload_digest(sample(3)) not in store
        assert store.usage().memory_bytes == 2 * SIZE
        assert all(same_payload(store.get(d), sample(seed)) for seed, d in enumerate(digests))
        store.free(digests[0])
        assert store.put(sample(3)) in store


def test_a_failing_disk_leaves_the_store_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with PayloadStore(tmp_path, memory_bytes=SIZE) as store:
        digest = store.put(sample(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(PayloadError, match="No space left"):
                store.put(sample(1))
        assert same_payload(store.get(digest), sample(0))
        assert store.usage().payloads == 1
        store.put(sample(1))
        assert not list(tmp_path.rglob(f"*{PART}"))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=0) as store:
        digest = store.put(sample(0))
        gc.collect()
        path = store.persist(digest)
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
        with pytest.raises(PayloadError, match="damaged"):
            store.get(digest)


def test_a_cache_that_someone_changed_in_memory_is_found_out_when_its_file_is_read(tmp_path: Path) -> None:
    payload = sample(0)
    with PayloadStore(tmp_path, memory_bytes=SIZE) as store:
        digest = store.put(payload)
        assert isinstance(payload.body, CacheBody)
        payload.body.cache.keys[0].add_(1)
        del payload
        store.put(sample(1))
        gc.collect()
        with pytest.raises(PayloadError, match="changed or damaged"):
            store.get(digest)


def test_two_stores_share_a_payload_that_is_a_file_and_its_bytes_go_with_the_last(tmp_path: Path) -> None:
    with PayloadStore(tmp_path) as first, PayloadStore(tmp_path) as second:
        digest = first.put(sample(0))
        with pytest.raises(PayloadError, match="must be persisted"):
            second.retain(digest)
        path = first.persist(digest)
        second.retain(digest)
        second.retain(digest)
        assert path.stat().st_nlink == 2
        assert second.usage().disk_bytes == path.stat().st_size  # counted once
        first.free(digest)
        assert same_payload(second.get(digest), sample(0))
        second.free(digest)
        assert same_payload(second.get(digest), sample(0))
        second.free(digest)
        assert files(tmp_path) == []


def test_an_adopted_payload_can_be_put_as_well(tmp_path: Path) -> None:
    with PayloadStore(tmp_path) as first, PayloadStore(tmp_path, memory_bytes=0) as second:
        digest = first.put(sample(0))
        first.persist(digest)
        second.retain(digest)
        second.put(sample(0))
        second.free(digest)
        assert same_payload(second.get(digest), sample(0))
        assert second.usage().memory_bytes == 0


def test_a_file_system_without_hard_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with PayloadStore(tmp_path) as first, PayloadStore(tmp_path) as second:
        digest = first.put(sample(0))
        first.persist(digest)
        second.retain(digest)
        first.free(digest)
        assert same_payload(second.get(digest), sample(0))
        assert not list(tmp_path.rglob(f"*{PART}"))


def test_files_are_signed_with_the_key_and_demanded_so(tmp_path: Path) -> None:
    with (
        PayloadStore(tmp_path, key=b"k") as first,
        PayloadStore(tmp_path, key=b"k") as second,
        PayloadStore(tmp_path, key=b"other") as third,
    ):
        digest = first.put(sample(0))
        first.persist(digest)
        second.retain(digest)
        third.retain(digest)
        second.get(digest)
        with pytest.raises(PayloadError, match="signed with another key"):
            third.get(digest)


def test_another_payload_under_the_name_of_one_is_refused(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=0) as store:
        a, b = store.put(sample(0)), store.put(sample(1))
        gc.collect()
        store.persist(a).write_bytes(store.persist(b).read_bytes())
        with pytest.raises(PayloadError, match="another payload"):
            store.get(a)


def test_a_closed_store_refuses_everything_and_leaves_nothing(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, memory_bytes=0)
    digest = store.put(sample(0))
    store.close()
    store.close()
    for method in (store.get, store.free, store.retain, store.persist):
        with pytest.raises(PayloadError, match="was closed"):
            method(digest)
    with pytest.raises(PayloadError, match="was closed"):
        store.put(sample(1))
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]


def test_a_store_that_is_forgotten_clears_its_part(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, memory_bytes=0)
    store.put(sample(0))
    del store
    gc.collect()
    assert files(tmp_path) == []


def test_a_forked_child_neither_uses_nor_clears_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PayloadStore(tmp_path, memory_bytes=0)
    digest = store.put(sample(0))
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(PayloadError, match="forked"):
            store.free(digest)
        store._holder.close()
    assert files(tmp_path) == [f"{digest}.safetensors"]


def test_opening_a_folder_removes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=0) as alive:
        digest = alive.put(sample(0))
        dead = tmp_path / "holder-1-deadbeef"
        dead.mkdir()
        (dead / "alive").touch()
        (dead / f"{'0' * 64}.safetensors").write_bytes(b"left behind")
        (dead / f".x{PART}").write_bytes(b"half")
        unborn = tmp_path / "holder-2-0000"  # killed before it had made its lock
        unborn.mkdir()
        (tmp_path / "notes.safetensors").write_text("mine")
        (tmp_path / "holder").mkdir()
        with PayloadStore(tmp_path):
            assert not dead.exists()
            assert not unborn.exists()
            assert (tmp_path / "notes.safetensors").exists()
            assert (tmp_path / "holder").exists()
            assert same_payload(alive.get(digest), sample(0))


def test_unfinished_files_count_against_the_disk_budget(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    (holder.folder / f".x{PART}").write_bytes(bytes(1000))
    assert holder.used() == 1000
    holder.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PayloadError, match="can't be kept here"):
        PayloadStore(tmp_path / "file" / "below")


def test_a_cache_from_the_disk_tier_can_be_stood_on(tmp_path: Path) -> None:
    with PayloadStore(tmp_path, memory_bytes=0) as store:
        digest = store.put(sample(0))
        gc.collect()
        body = store.get(digest).body
        assert isinstance(body, CacheBody)
        body.cache.keys[0].zero_()  # what no one may do; the file stays as it is
        del body
        gc.collect()
        assert same_payload(store.get(digest), sample(0))
        assert torch.is_tensor(store.get(digest).body.cache.positions)  # type: ignore[union-attr]
