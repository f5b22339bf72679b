from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import DataError
from agentflow.tasks.multihop import MultiHopSettings
from agentflow.tasks.musique import MuSiQue

Make = Callable[..., Any]
TRAIN = "musique/train_100.json"


def record(key: str = "3hop1__1_2_3", gold: tuple[int, ...] = (1, 4, 6), **changes: Any) -> dict[str, Any]:
    paragraphs = [
        {"idx": at, "title": f"T{at}", "paragraph_text": f"Text {at}.", "is_supporting": at in gold} for at in range(8)
    ]
    base = {"id": key, "question": "Who?", "answer": "Ada", "answer_aliases": ["Lovelace", "Ada"]}
    return {**base, "paragraphs": paragraphs, "answerable": True, **changes}


def test_aliases_count_and_the_group_is_the_number_of_hops(write: Make) -> None:
    (item,) = MuSiQue().items(data=write([record()]), limit=None, seed=0)
    assert item.answers == (("Ada", "Lovelace"),)
    assert item.group == "3hop"
    assert MuSiQue().score(item, ["lovelace."])["em"] == 1.0


def test_without_a_telling_id_the_decomposition_tells_the_hops(write: Make) -> None:
    records = [record("x", question_decomposition=[{}, {}]), record("y")]
    assert [item.group for item in MuSiQue().items(data=write(records), limit=None, seed=0)] == ["2hop", ""]


def test_unanswerable_questions_are_left_out(write: Make) -> None:
    data = write([record("2hop__a"), record("2hop__b", answerable=False)])
    assert [item.id for item in MuSiQue().items(data=data, limit=None, seed=0)] == ["2hop__a"]


def test_a_malformed_paragraph_is_named(write: Make) -> None:
    with pytest.raises(DataError, match="record 1: Each paragraph"):
        MuSiQue().items(data=write([record(paragraphs=[{"title": "T"}])]), limit=None, seed=0)


def test_split_leaves_gold_on_both_sides_of_every_real_question(real: Callable[[str], Path]) -> None:
    task = MuSiQue(MultiHopSettings(setting="split", paragraphs=8))
    items = task.items(data=real(TRAIN), limit=None, seed=0)
    assert len(items) == 100
    assert {item.group for item in items} == {"2hop", "3hop", "4hop"}
    for item in items:
        sides = [len(item.meta[key]) for key in ("gold_documents", "gold_own_documents")]
        assert abs(sides[0] - sides[1]) <= 1
        assert min(sides) >= 1
        assert sum(sides) == int(item.group[0])
        assert len(item.inputs["documents"]) == len(item.inputs["own_documents"]) == 4
