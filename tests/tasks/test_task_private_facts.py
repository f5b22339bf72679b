from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import UserError
from agentflow.tasks.base import Item
from agentflow.tasks.private_facts import LEVELS, PrivateFacts, PrivateFactsSettings
from agentflow.tasks.scores import contains

KINDS = ["digits", "names", "text"]


def make(n: int = 30, seed: int = 0, **settings: Any) -> list[Item]:
    return PrivateFacts(PrivateFactsSettings(**settings)).items(data=None, limit=n, seed=seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hops", [1, 2])
def test_every_question_is_answered_by_the_facts_and_only_once(kind: str, hops: int) -> None:
    for item in make(kind=kind, hops=hops, facts=12, questions=5):
        facts = item.inputs["facts"]
        assert len(facts) == 12 * hops
        assert len(set(facts)) == len(facts)
        for question, (gold,) in zip(item.inputs["questions"], item.answers, strict=True):
            who = question.split(" of ")[-1].rstrip("?")
            (about,) = [fact for fact in facts if f" of {who} is " in fact]
            if hops == 2:
                room = about.split("room ")[-1].rstrip(".")
                (about,) = [fact for fact in facts if f"room {room} is " in fact]
            assert about.endswith(f" is {gold}.")


@pytest.mark.parametrize("kind", KINDS)
def test_people_and_values_are_unique_and_no_value_holds_another(kind: str) -> None:
    for item in make(kind=kind, facts=64, questions=3):
        values, people = item.meta["values"], item.meta["people"]
        assert len(set(values)) == len(set(people)) == 64
        assert sum(contains(one, other) for one in values for other in values) == 64
        assert len(set(item.inputs["questions"])) == 3


def test_people_have_different_initials_while_letters_last() -> None:
    for item in make(facts=20):
        assert len({name[0] for name in item.meta["people"]}) == 20


def test_items_depend_on_seed_and_index_alone() -> None:
    assert make(10) == make(30)[:10]
    assert make(10, seed=1) != make(10)
    ids = [item.id for item in make(30) + make(30, seed=1) + make(30, facts=9)]
    assert len(set(ids)) == 90
    json.dumps(make(1)[0].inputs)


def test_the_first_item_is_the_same_on_every_python() -> None:
    (item,) = make(1, facts=2, questions=1)
    assert item.inputs == {
        "facts": ["The locker code of Dora is 8663.", "The locker code of Mona is 5206."],
        "questions": ["What is the locker code of Mona?"],
    }
    assert item.answers == (("5206",),)


def test_without_a_limit_the_count_decides() -> None:
    assert len(PrivateFacts(PrivateFactsSettings(count=7)).items(data=None, limit=None, seed=0)) == 7


def test_a_level_sets_what_is_not_set_by_hand() -> None:
    for level, preset in LEVELS.items():
        chosen = PrivateFactsSettings.model_validate({"level": level})
        assert {key: getattr(chosen, key) for key in preset} == preset
    assert PrivateFactsSettings.model_validate({"level": "hard", "hops": 1}).hops == 1


def test_a_data_file_is_refused() -> None:
    with pytest.raises(UserError, match="makes its own items"):
        PrivateFacts().items(data=Path("x.json"), limit=1, seed=0)


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ("{gold}", 1.0),
        ("The locker code of Mara is **{gold}**.", 1.0),
        ("In 3 words: {gold}", 1.0),
        ("{gold} and {other}", 1.0),
        ("{other}, {gold}", 0.0),
        ("{gold}5", 0.0),
        ("x{gold}", 0.0),
        ("0000 {gold}", 0.0),
        ("", 0.0),
        ("I don't know", 0.0),
    ],
)
def test_for_digits_the_first_code_decides(prediction: str, expected: float) -> None:
    item = make(1, questions=1)[0]
    gold = item.answers[0][0]
    other = next(value for value in item.meta["values"] if value != gold)
    scores = PrivateFacts().score(item, [prediction.format(gold=gold, other=other)])
    assert scores["exact"] == expected


@pytest.mark.parametrize("kind", ["names", "text"])
def test_reciting_every_fact_wins_only_what_comes_first(kind: str) -> None:
    for item in make(kind=kind, facts=6, questions=6):
        scores = PrivateFacts().score(item, [" ".join(item.inputs["facts"])] * 6)
        assert scores == {"exact": pytest.approx(1 / 6), "contains": 1.0, "recalled": 1.0}
        right = PrivateFacts().score(item, [f"It is {gold.upper()}!" for (gold,) in item.answers])
        assert right["exact"] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_fact_counts_as_recalled_and_as_nothing_else(kind: str) -> None:
    for item in make(kind=kind, facts=2, questions=1):
        (wrong,) = set(item.meta["values"]) - set(item.answers[0])
        scores = PrivateFacts().score(item, [f"It is {wrong}."])
        assert scores == {"exact": 0.0, "contains": 0.0, "recalled": 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_another_items_facts_are_worth_nothing(kind: str) -> None:
    items = make(60, kind=kind, facts=8)
    rows = []
    for item, other in pairwise(items):
        recital = " ".join(other.inputs["facts"])
        rows.append(PrivateFacts().score(item, [recital, recital]))
    assert all(row["exact"] == row["contains"] == 0.0 for row in rows)
    assert sum(row["recalled"] for row in rows) <= 2  # two codes may coincide by chance
