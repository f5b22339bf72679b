"""What crosses to actors and is known of it, and what is refused: no cluster is needed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from agentflow.errors import ModelError
from agentflow.kv.cache import KVCache
from agentflow.models.spec import resolve_model
from agentflow.runtime.executors.actors.shelf import is_beginning
from agentflow.runtime.executors.actors.views import Shipped, pack, tensor_of
from agentflow.runtime.executors.ray import RayCluster
from tests.kv.samples import closed, random_cache, random_entries, same_tensor

CACHES = {
    "float32": random_cache(5),
    "bfloat16": random_cache(5, dtype=torch.bfloat16),
    "float16": random_cache(5, dtype=torch.float16),
    "empty": random_cache(0),
    "biased": random_cache(4, biased=True),
    "compacted": random_cache(7).select(torch.tensor([0, 3, 6])),
    "closed": closed(random_cache(7).select(torch.tensor([0, 3, 6]))),
    "growing": random_cache(3).extend(*random_entries(2)),
}


def same_cache(a: KVCache, b: KVCache) -> bool:
    mine, theirs = ((*c.keys, *c.values, *(c.bias or ()), c.positions, c.rotary_positions) for c in (a, b))
    is_alike = (a.next_position, a.bias is None, a.rotary is None) == (
        b.next_position,
        b.bias is None,
        b.rotary is None,
    )
    return is_alike and len(mine) == len(theirs) and all(map(same_tensor, mine, theirs))


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_is_shipped_bit_for_bit_and_views_share_its_bytes(kind: str) -> None:
    cache = CACHES[kind]
    shipped = Shipped.of(cache)
    assert same_cache(shipped.cache(), cache)
    if kind == "float32":
        assert shipped.cache().keys[0].data_ptr() == cache.keys[0].data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_tensor_is_cut_into_blocks_and_one_again_without_a_copy_where_they_adjoin(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 5000, 67, generator=torch.Generator().manual_seed(0)).to(dtype)
    blocks, form = pack(tensor)
    assert len(blocks) == form.blocks > 1
    assert tensor_of(blocks, form).data_ptr() == tensor.data_ptr()
    assert same_tensor(tensor_of(blocks, form), tensor)
    assert same_tensor(tensor_of([block.copy() for block in blocks], form), tensor)


def test_a_view_keeps_its_object_and_a_cache_that_grows_from_it_leaves_it_alone() -> None:
    shipped = Shipped.of(random_cache(5))
    for block in shipped.blocks:
        block.flags.writeable = False  # as Ray hands them out
    cache = shipped.cache()
    before = [k.clone() for k in cache.keys]
    del shipped
    longer = cache.extend(*random_entries(3))
    assert longer.next_position == 8
    assert all(torch.equal(k, b) for k, b in zip(cache.keys, before, strict=True))


def test_the_beginning_of_a_cache_is_known_as_such_and_nothing_else_is() -> None:
    whole = random_cache(9)
    assert is_beginning(whole, whole)
    assert is_beginning(whole.before(4), whole)
    assert not is_beginning(whole, whole.before(4))
    assert not is_beginning(random_cache(4), whole)
    assert not is_beginning(whole.select(torch.arange(4)), whole)
    biased = KVCache(whole.keys, whole.values, whole.positions, 9, tuple(torch.ones(k.shape[:2]) for k in whole.keys))
    assert not is_beginning(biased, whole)
    assert not is_beginning(closed(whole.select(torch.tensor([0, 3]))), whole)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "refused"),
        ("nowhere.invalid:6379", "not known"),
        ("nowhere", "no address"),
        ("ray://127.0.0.1:1", "share memory"),
    ],
)
def test_an_address_where_no_cluster_is_is_told_at_once(
    address: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ModelError, match=why) as told:
        RayCluster(address)
    assert told.value.where == address


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModelError, match="pip install"):
        RayCluster()


@pytest.mark.parametrize("wrong", [{"count": 0}, {"cpus": -1}, {"gpu": 1}])
def test_actors_that_can_be_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(wrong))):
        resolve_model({"source": "owner/name", "actors": wrong})
