from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import DataError
from agentflow.tasks.base import Item
from agentflow.tasks.halves import half_of
from agentflow.tasks.hotpotqa import HotpotQA
from agentflow.tasks.multihop import MultiHopSettings

Make = Callable[..., Any]
DEV = "hotpotqa/dev_distractor_808.jsonl.gz"


def titles(item: Item, key: str) -> list[str]:
    return [document["title"] for document in item.inputs[key]]


def task(**settings: Any) -> HotpotQA:
    return HotpotQA(MultiHopSettings(**settings))


def test_full_gives_the_sender_everything(write: Make, hotpot: Make) -> None:
    (item,) = task().items(data=write([hotpot()]), limit=None, seed=0)
    assert titles(item, "documents") == [f"T{at}" for at in range(10)]
    assert item.inputs["documents"][3]["text"] == "First of 3. Second of 3."
    assert item.inputs["own_documents"] == []
    assert (item.id, item.group, item.answers) == ("q1", "bridge", (("T2",),))
    assert item.meta["gold_documents"] == [2, 7]


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_split_puts_one_gold_paragraph_on_each_side_in_file_order(write: Make, hotpot: Make, n: int) -> None:
    data = write([hotpot(f"q{at}", n=n, gold=(0, n - 1)) for at in range(40)])
    senders_gold = set()
    for item in task(setting="split").items(data=data, limit=None, seed=3):
        sender, receiver = titles(item, "documents"), titles(item, "own_documents")
        assert sorted(sender + receiver) == sorted(f"T{at}" for at in range(n))
        assert sender == sorted(sender)
        assert receiver == sorted(receiver)
        assert len(sender) == (n + 1) // 2
        assert len(item.meta["gold_documents"]) == len(item.meta["gold_own_documents"]) == 1
        senders_gold.add(sender[item.meta["gold_documents"][0]])
    assert senders_gold == {"T0", f"T{n - 1}"}


def test_fewer_paragraphs_keep_the_gold_ones_and_their_order(write: Make, hotpot: Make) -> None:
    data = write([hotpot(f"q{at}") for at in range(20)])
    chosen = [titles(item, "documents") for item in task(paragraphs=4).items(data=data, limit=None, seed=1)]
    assert all(len(names) == 4 and {"T2", "T7"} <= set(names) and names == sorted(names) for names in chosen)
    assert len({tuple(names) for names in chosen}) > 5


def test_same_seed_same_items_and_another_seed_others(write: Make, hotpot: Make) -> None:
    data = write([hotpot(f"q{at}") for at in range(20)])
    split = task(setting="split", paragraphs=6, shuffle=True)
    first = split.items(data=data, limit=None, seed=1)
    assert first == split.items(data=data, limit=None, seed=1)
    other = split.items(data=data, limit=None, seed=2)
    assert [item.id for item in first] != [item.id for item in other]
    assert sorted(item.id for item in first) == sorted(item.id for item in other)
    assert first[:5] == split.items(data=data, limit=5, seed=1)


def test_what_can_not_be_split_is_left_out_and_counted(
    write: Make, hotpot: Make, caplog: pytest.LogCaptureFixture
) -> None:
    records = [
        hotpot("good"),
        hotpot("one", gold=(1,)),
        hotpot("three", gold=(1, 2, 3)),
        hotpot("none", gold=()),
    ]
    with caplog.at_level(logging.WARNING):
        items = task(setting="split").items(data=write(records), limit=None, seed=0)
    assert [item.id for item in items] == ["good"]
    assert "left out 3 of 4: its gold paragraphs can't be split" in caplog.text
    with pytest.raises(DataError, match="No record can be used: its gold"):
        task(setting="split").items(data=write(records[1:]), limit=None, seed=0)


def test_gold_titles_come_from_either_key(write: Make, hotpot: Make) -> None:
    changes = {"supporting_facts": None, "supporting_titles": ["T1", "T4", "T1"]}
    (item,) = task().items(data=write([hotpot(**changes)]), limit=None, seed=0)
    assert item.meta["gold_titles"] == ["T1", "T4"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": " "}, "'question' must be a text"),
        ({"answer": None}, "'answer' must be a text"),
        ({"context": []}, "'context' must be a list"),
        ({"context": [["T", "text"]]}, "'T' must be a list of sentences"),
        ({"context": ["T"]}, "Each entry of 'context'"),
        ({"supporting_facts": [["T"]]}, "'supporting_facts' must be"),
        ({"supporting_facts": None, "supporting_titles": 5}, "'supporting_titles' must be"),
    ],
)
def test_a_malformed_record_is_named(write: Make, hotpot: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"record 2: .*{message}"):
        task().items(data=write([hotpot("a"), hotpot("b", **changes)]), limit=1, seed=0)


def test_a_missing_key_and_a_repeated_id_are_named(write: Make, hotpot: Make) -> None:
    broken = hotpot("b")
    del broken["answer"]
    with pytest.raises(DataError, match="record 2: The record has no 'answer'"):
        task().items(data=write([hotpot("a"), broken]), limit=None, seed=0)
    with pytest.raises(DataError, match=r"'a' was used before, at .*record 1"):
        task().items(data=write([hotpot("a"), hotpot("a")]), limit=None, seed=0)


def test_scores_are_the_official_ones(write: Make, hotpot: Make) -> None:
    (item,) = task().items(data=write([hotpot(answer="Ada Lovelace")]), limit=None, seed=0)
    assert task().score(item, ["the Ada Lovelace!"]) == {"em": 1.0, "f1": 1.0, "contains": 1.0}
    assert task().score(item, ["Ada"])["f1"] == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="1 questions, got a bare string"):
        task().score(item, "Ada")
    with pytest.raises(ValueError, match="1 questions, got 2 predictions"):
        task().score(item, ["Ada", "Bob"])


def test_the_halves_are_fixed_for_ever() -> None:
    assert [half_of(key) for key in ("a", "b", "c", "ü")] == ["reporting", "reporting", "tuning", "reporting"]
    for key in map(str, range(100)):
        odd = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2 == 1
        assert half_of(key) == ("reporting" if odd else "tuning")


def test_the_real_file_halves_are_disjoint_and_complete(real: Callable[[str], Path]) -> None:
    data = real(DEV)
    ids = {
        half: {item.id for item in task(split_half=half).items(data=data, limit=None, seed=0)}
        for half in ("all", "tuning", "reporting")
    }
    assert len(ids["all"]) == 808
    assert ids["tuning"] | ids["reporting"] == ids["all"]
    assert not ids["tuning"] & ids["reporting"]
    assert abs(len(ids["tuning"]) - 404) < 40


@pytest.mark.parametrize("name", [DEV, "hotpotqa/train_100.json"])
def test_every_real_question_splits_with_one_gold_each(real: Callable[[str], Path], name: str) -> None:
    whole = task().items(data=real(name), limit=None, seed=0)
    parts = task(setting="split").items(data=real(name), limit=None, seed=0)
    assert len(whole) == len(parts) >= 100
    for one, two in zip(whole, parts, strict=True):
        assert len(one.meta["gold_documents"]) == 2
        assert len(two.meta["gold_documents"]) == len(two.meta["gold_own_documents"]) == 1
        assert sorted(titles(one, "documents")) == sorted(titles(two, "documents") + titles(two, "own_documents"))
