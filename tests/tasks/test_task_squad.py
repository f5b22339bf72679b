"""SQuAD's two forms, on articles made here; none of the data's own text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import DataError
from agentflow.tasks.registry import make_task

Make = Callable[..., Any]


def article(title: str = "Towers", paragraphs: int = 4, **changes: Any) -> dict[str, Any]:
    def asked(n: int) -> dict[str, Any]:
        answers = [{"text": f"{n} m", "answer_start": 12}, {"text": f"{n} metres", "answer_start": 12}]
        return {"id": f"{title}-{n}", "question": f" How tall is tower {n}?", "answers": answers, **changes}

    rows = [{"context": f"Tower {n} is {n} metres tall.", "qas": [asked(n)]} for n in range(paragraphs)]
    return {"title": title, "paragraphs": rows}


def squad(*articles: dict[str, Any]) -> dict[str, Any]:
    return {"version": "1.1", "data": list(articles)}


def items(data: Path, **settings: Any) -> list[Any]:
    return make_task("squad", settings).items(data=data, limit=None, seed=0)


def test_every_question_is_an_item_with_its_paragraph_and_every_answer_accepted(write: Make) -> None:
    found = items(write(squad(article(), article("Bridges", 2))))
    assert [item.id for item in found] == [*(f"Towers-{n}" for n in range(4)), "Bridges-0", "Bridges-1"]
    third = found[2]
    assert third.inputs["question"] == "How tall is tower 2?"
    assert third.inputs["documents"] == [{"title": "Towers", "text": "Tower 2 is 2 metres tall."}]
    assert third.inputs["own_documents"] == []
    assert third.answers == (("2 m", "2 metres"),)
    assert make_task("squad", {}).score(third, ["2 metres"])["em"] == 1.0


def test_lines_of_one_question_each_are_read_too(tmp_path: Path) -> None:
    line = {"id": "a", "title": "Towers", "context": "It is tall.", "question": "Is it?",
            "answers": {"text": ["tall"], "answer_start": [6]}}  # fmt: skip
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "id": "b", "answers": {"text": []}}) + "\n")
    (found,) = items(path)
    assert (found.id, found.answers) == ("a", (("tall",),))
    for given in (["tall", "high"], [{"text": "tall", "answer_start": 6}, {"text": "high"}]):
        path.write_text(json.dumps({**line, "answers": given}) + "\n" + json.dumps({**line, "id": "b", "answers": []}))
        assert [one.answers for one in items(path)] == [(("tall", "high"),)]
    for wrong in ("tall", {"text": "tall"}, [1], [{"answer_start": 6}]):
        path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "id": "b", "answers": wrong}) + "\n")
        with pytest.raises(DataError, match=r"lines\.jsonl:2.*'answers' must be a list of texts"):
            items(path)


def test_the_real_file_is_read(real: Callable[[str], Path]) -> None:
    found = items(real("squad/squadv2_500.jsonl"))
    assert len(found) == 103
    for one in found:
        (document,) = one.inputs["documents"]
        assert all(answer in document["text"] for answer in one.answers[0])


def test_unanswerable_questions_are_left_out(write: Make) -> None:
    second = article("Holes", 1, answers=[], is_impossible=True)
    assert {item.id[:6] for item in items(write(squad(article(), second)))} == {"Towers"}


def test_other_paragraphs_of_the_article_stand_beside_it_in_their_order(write: Make) -> None:
    data = write(squad(article(paragraphs=6)))
    for n, item in enumerate(items(data, paragraphs=3)):
        texts = [d["text"] for d in item.inputs["documents"]]
        assert len(texts) == 3
        assert texts == sorted(texts)
        assert item.meta["gold_documents"] == [texts.index(f"Tower {n} is {n} metres tall.")]


def test_split_leaves_the_answer_with_the_sender_and_something_else_with_the_receiver(write: Make) -> None:
    data = write(squad(article(paragraphs=6)))
    for item in items(data, paragraphs=4, setting="split"):
        assert len(item.inputs["documents"]) == len(item.inputs["own_documents"]) == 2
        assert len(item.meta["gold_documents"]) == 1
        assert item.meta["gold_own_documents"] == []
    with pytest.raises(DataError, match="can't be split"):
        items(data, setting="split")


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ({"title": "T", "paragraphs": [{"context": "x"}]}, "record 1: Paragraph 1 must be an object"),
        ({"title": "T", "paragraphs": [{"context": "x", "qas": ["?"]}]}, "Question 1 of paragraph 1"),
        (article(answers=[{"answer_start": 3}]), "record 1, paragraph 1, question 1: 'answers' must be"),
        (article(question=" "), "record 1, paragraph 1, question 1: 'question'"),
    ],
)
def test_what_is_malformed_is_named_by_its_place(write: Make, broken: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError, match=what):
        items(write(squad(broken)))
