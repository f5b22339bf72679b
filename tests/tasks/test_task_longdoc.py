from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import DataError
from agentflow.tasks.chunks import chunk
from agentflow.tasks.longdoc import LongDoc, LongDocSettings
from agentflow.tasks.prompts import Prompt, parse_prompt, passages

Make = Callable[..., Any]
ASK = "Answer the question based on the given passages. Only give me the answer."
PROMPT = (
    f"{ASK}\n\nThe following are given passages.\nPassage 1:\nAda\nAda wrote.\n\nQuestion: not this one\n"
    f"Passage 2:\nBob\nBob read.\nPassage 7:\nmore of Bob\n\n{ASK}\n\nQuestion: Who wrote?\nAnswer:"
)


def test_a_prompt_gives_its_passages_and_its_question(write: Make) -> None:
    data = write({"0": {"origin_prompt": PROMPT, "gold": ["Ada", "A."], "prediction": "x"}}, "2wikimqa.json")
    (item,) = LongDoc().items(data=data, limit=None, seed=0)
    assert item.inputs["question"] == "Who wrote?"
    assert item.inputs["documents"] == [
        {"title": "Ada", "text": "Ada wrote.\n\nQuestion: not this one"},
        {"title": "Bob", "text": "Bob read.\nPassage 7:\nmore of Bob"},
    ]
    assert (item.id, item.group, item.answers) == ("2wikimqa-0", "2wikimqa", (("Ada", "A."),))


def test_a_prompt_without_instructions_loses_nothing() -> None:
    assert parse_prompt("First part.\n\nSecond part.\nQuestion: Why?") == Prompt("First part.\n\nSecond part.", "Why?")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("no question here", "no line that starts with 'Question:'"),
        ("text\nQuestion:\nAnswer:", "asks nothing"),
        ("\nQuestion: Why?\nAnswer:", "no document"),
        (f"{ASK}\n\nQuestion: Why?\nAnswer:", "no document"),
        ("", "'origin_prompt' must be a text"),
    ],
)
def test_a_prompt_that_can_not_be_parsed_is_named(write: Make, prompt: str, message: str) -> None:
    good = {"origin_prompt": PROMPT, "gold": "Ada"}
    with pytest.raises(DataError, match=rf"record 2: .*{message}"):
        LongDoc().items(data=write([good, {"origin_prompt": prompt, "gold": "x"}]), limit=None, seed=0)


def test_the_other_two_shapes_are_read(write: Make, hotpot: Make) -> None:
    own = {
        "_id": "n1",
        "context": "Ada wrote. " * 30,
        "input": "Who?",
        "answers": ["Ada"],
        "dataset": "qasper",
    }
    chat = {"origin_prompt": [{"role": "HUMAN", "prompt": PROMPT}], "gold": "Ada"}
    first, second, third = LongDoc(LongDocSettings(chunk_words=20)).items(
        data=write([own, hotpot("h1"), chat]), limit=None, seed=0
    )
    assert (first.id, first.group, len(first.inputs["documents"])) == ("n1", "qasper", 3)
    assert (second.id, second.group, len(second.inputs["documents"])) == ("h1", "", 10)
    assert third.id == "data-2"


def test_documents_that_are_too_long_are_left_out_and_counted(write: Make, caplog: pytest.LogCaptureFixture) -> None:
    records = [
        {"_id": f"n{words}", "context": "word " * words, "input": "Who?", "answers": ["Ada"]} for words in (40, 50, 60)
    ]
    task = LongDoc(LongDocSettings(max_words=50))
    assert [item.id for item in task.items(data=write(records), limit=None, seed=0)] == ["n40", "n50"]
    assert "left out 1 of 3: documents of more than 50 words (max_words)" in caplog.text
    with pytest.raises(DataError, match="No record can be used: documents of more than 50 words"):
        task.items(data=write(records[2:]), limit=None, seed=0)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "x"}, "neither 'origin_prompt' nor 'context'"),
        ({"origin_prompt": PROMPT}, "has no 'gold'"),
        ({"origin_prompt": PROMPT, "gold": []}, "'gold' holds no answer"),
        ({"origin_prompt": PROMPT, "gold": [3]}, "'gold' must be"),
        ({"context": "text", "answers": ["x"]}, "has no 'input'"),
    ],
)
def test_a_record_of_no_known_shape_is_named(write: Make, record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"record 1: .*{message}"):
        LongDoc().items(data=write([record]), limit=None, seed=0)


def test_passage_marks_count_only_in_order_and_from_the_start() -> None:
    assert passages("Passage 2:\nx") is None
    assert passages("text\nPassage 1:\nx") is None
    assert passages("Passage 1:\nlone line") == [("Passage 1", "lone line")]


@given(st.text(alphabet="ab .!?\n\t”", max_size=200), st.integers(1, 8))
def test_chunks_lose_no_word_and_stay_within_their_size(text: str, words: int) -> None:
    pieces = chunk(text, words)
    assert " ".join(pieces).split() == text.split()
    assert all(0 < len(piece.split()) <= words for piece in pieces)


def test_chunks_end_where_paragraphs_and_sentences_end() -> None:
    text = "One two three.\nFour five six. Seven eight.\n\n" + "nine " * 7
    assert chunk(text, 4) == [
        "One two three.",
        "Four five six.",
        "Seven eight.",
        "nine nine nine nine",
        "nine nine nine",
    ]


@pytest.mark.parametrize("name", ["2wikimqa", "hotpotqa", "musique", "multifieldqa_en"])
def test_real_prompts_keep_every_word_of_their_document(real: Callable[[str], Path], name: str) -> None:
    items = LongDoc().items(data=real(f"longbench/{name}.json"), limit=None, seed=0)
    assert len(items) >= 7
    for item in items:
        text = " ".join(document["text"] for document in item.inputs["documents"])
        assert item.group == name
        assert 5 <= len(item.inputs["question"].split()) <= 60
        assert "\n" not in item.inputs["question"]
        assert item.meta["words"] > 300
        assert len(item.inputs["documents"]) >= 4
        assert "do not output any other words" not in text
        assert "given passages" not in text
