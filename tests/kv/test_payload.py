from __future__ import annotations

import pytest
import torch

from agentflow.errors import PayloadError
from agentflow.kv.bodies import CacheBody, CodesBody, QuantizedBody, TextBody, Turn, turns_of
from agentflow.kv.geometry import Geometry
from agentflow.kv.payload import Header, Payload
from tests.kv.samples import fingerprint, payload_of, payloads, random_cache


def test_a_payload_of_the_same_model_is_let_in_whatever_the_model_is_called() -> None:
    payload_of(random_cache()).require(fingerprint(model="another name"))


@pytest.mark.parametrize("field", ["geometry", "weights", "tokenizer", "rope"])
def test_a_foreign_payload_is_refused_by_name_of_what_differs(field: str) -> None:
    other = Geometry(((4, 16, 16),)) if field == "geometry" else "x" * 80
    receiver = fingerprint(model="theirs", **{field: other})
    with pytest.raises(PayloadError, match=f"'m' does not fit 'theirs': different {field} ") as caught:
        payload_of(random_cache()).require(receiver)
    assert "text" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_everything_that_differs_is_named() -> None:
    mine, theirs = fingerprint(), fingerprint(weights="v", rope="s")
    assert mine.differences(theirs) == ["weights (w here, v there)", "rope (r here, s there)"]
    assert mine.differences(mine) == []


@pytest.mark.parametrize("bits", [None, 4])
def test_a_cache_of_other_shapes_than_its_header_says_is_refused(bits: int | None) -> None:
    liar = payload_of(random_cache(3, layers=((1, 4, 4),)))
    liar = Payload(Header("cache", "s", fingerprint()), liar.body)
    if bits:
        liar = liar.quantized(4)
    with pytest.raises(PayloadError, match="another model than its tensors"):
        liar.require(fingerprint())


def test_text_needs_no_model() -> None:
    Payload(Header("text", "s"), TextBody(())).require(fingerprint())


def test_sizes_count_tensors_tokens_positions_and_text() -> None:
    turns = (Turn("user", "é"), Turn("assistant", "ab"))
    assert TextBody(turns).nbytes == 4
    cache = random_cache(5).select(torch.tensor([0, 2]))
    body = CacheBody(cache, tuple(range(5)), turns)
    assert body.nbytes == cache.nbytes + 8 * (5 + 2) + 4
    assert CodesBody({"z": torch.zeros(3, dtype=torch.float16), "n": torch.zeros(0)}).nbytes == 6
    assert CodesBody({"z": torch.zeros(3, dtype=torch.float16)}, {"a": "é"}).nbytes == 6 + len('{"a": "é"}') + 1
    payload = Payload(Header("c", "s"), body)
    assert payload.nbytes == body.nbytes
    assert payload.quantized(8, sinks=0).nbytes < payload.nbytes + 200


def test_stats_add_up_and_leave_the_first_payload_alone() -> None:
    first = payload_of(random_cache())
    second = first.with_stats(encode=1.0).with_stats(move=2.0, encode=3.0)
    assert (first.stats, second.stats) == ({}, {"encode": 3.0, "move": 2.0})
    assert second.body is first.body


def test_half_a_surrogate_pair_has_a_size() -> None:
    assert TextBody((Turn("user", "\ud800"),)).nbytes == 3


@pytest.mark.parametrize(
    "item", [{"role": "tool", "content": "x"}, {"role": "user"}, {"role": "user", "content": 3}, {}]
)
def test_turns_of_other_roles_or_fields_are_refused(item: dict[str, object]) -> None:
    with pytest.raises(PayloadError, match="A turn of a payload"):
        turns_of([item])
    with pytest.raises(PayloadError, match="A turn of a payload"):
        turns_of([{"role": "user", "content": "x", "extra": 1}])


def test_a_quantised_payload_says_its_loss_and_gives_a_cache_back() -> None:
    payload = payload_of(random_cache(9), head=2)
    small = payload.quantized(4, group=4)
    assert isinstance(small.body, QuantizedBody)
    said = "int4 keys per channel and values per token, groups of 4, first 4 positions exact"
    assert small.header.losses == (*payload.header.losses, said)
    back = small.dequantized(torch.float64).body
    assert isinstance(back, CacheBody)
    assert isinstance(payload.body, CacheBody)
    assert back.cache.dtype == torch.float64
    assert (back.token_ids, back.turns, back.head) == (payload.body.token_ids, payload.body.turns, 2)
    small.require(fingerprint())


def test_only_caches_can_be_quantised() -> None:
    text = payloads()["text"]
    with pytest.raises(PayloadError, match="Only a cache"):
        text.quantized(4)
    assert text.dequantized() is text
