from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow.tasks.base import Item
from agentflow.tasks.comparisons import TOPICS
from agentflow.tasks.debate import Debate, DebateSettings

Make = Callable[..., Any]
DEV = "hotpotqa/dev_distractor_808.jsonl.gz"


def make(n: int = 60, seed: int = 0, **settings: Any) -> list[Item]:
    return Debate(DebateSettings(**settings)).items(data=None, limit=n, seed=seed)


def value(lines: list[str], name: str) -> int | None:
    return next((int(re.findall(r"\d+", line)[-1]) for line in lines if name in line), None)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_answer_follows_from_both_sides_and_neither_side_knows_both(topic: str) -> None:
    for item in make(topic=topic):
        left, right = item.inputs["evidence_a"], item.inputs["evidence_b"]
        numbers = {}
        for name in item.meta["candidates"]:
            known = [value(side, name) for side in (left, right)]
            assert known.count(None) == 1
            numbers[name] = next(number for number in known if number is not None)
        best = min if TOPICS[topic].least else max
        assert item.answers == ((best(numbers, key=lambda name: numbers[name]),),)
        assert len(set(numbers.values())) == 2
        assert len(left) == len(right) == 4


def test_neither_order_nor_side_gives_the_answer_away() -> None:
    items = make(2000, topic="birth")
    first = sum(item.answers[0][0] == item.meta["candidates"][0] for item in items)
    left = sum(any(item.answers[0][0] in line for line in item.inputs["evidence_a"]) for item in items)
    assert 900 < first < 1100
    assert 900 < left < 1100


def test_one_sides_number_alone_says_little() -> None:
    items = make(2000, topic="birth", distractors=0)
    right = 0
    for item in items:
        line = item.inputs["evidence_a"][0]
        holds_answer = item.answers[0][0] in line
        right += holds_answer == (int(re.findall(r"\d+", line)[0]) < 1925)
    assert right / len(items) < 0.56


def test_items_repeat_with_the_seed_and_take_turns_at_topics() -> None:
    assert make(6) == make(30)[:6]
    assert make(6) != make(6, seed=1)
    assert [item.group for item in make(6)] == [*TOPICS, *TOPICS]
    assert len({item.id for item in make(30)}) == 30


def test_naming_both_candidates_wins_only_for_the_first() -> None:
    item = make(1)[0]
    gold = item.answers[0][0]
    other = next(name for name in item.meta["candidates"] if name != gold)
    assert Debate().score(item, [f"{gold}, not {other}"])["exact"] == 1.0
    assert Debate().score(item, [f"{other} or {gold}"])["exact"] == 0.0
    assert Debate().score(item, [gold]) == {"exact": 1.0, "em": 1.0, "f1": 1.0, "contains": 1.0}


def test_a_file_gives_its_comparisons_with_one_gold_paragraph_a_side(write: Make, hotpot: Make) -> None:
    records = [hotpot("b"), hotpot("c", type="comparison", answer="yes"), hotpot("d", n=2, gold=(0, 1))]
    records[2]["type"] = "comparison"
    first, second = Debate(DebateSettings(distractors=2)).items(data=write(records), limit=None, seed=0)
    for side, other in (("evidence_a", "evidence_b"), ("evidence_b", "evidence_a")):
        assert sum(line.startswith(("T2:", "T7:")) for line in first.inputs[side]) == 1
        assert len(first.inputs[side]) == 3
        assert not set(first.inputs[side]) & set(first.inputs[other])
        assert len(second.inputs[side]) == 1
    assert Debate().score(first, ["No, yes"])["exact"] == 0.0
    assert Debate().score(second, ["It is T2."])["exact"] == 1.0


def test_the_real_comparisons_are_all_used(real: Callable[[str], Path]) -> None:
    items = Debate().items(data=real(DEV), limit=None, seed=0)
    assert len(items) == 246
    assert {item.group for item in items} == {"comparison"}
    assert len(Debate().items(data=real(DEV), limit=5, seed=0)) == 5
