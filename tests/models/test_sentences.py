"""Where a text is cut into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.models.sentences import paragraphs_of, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four: five", ["One.", " Two!", " Three?", " Four:", " five"]),
        ('He said "no." She left.', ['He said "no."', " She left."]),
        ("3.14 is at 10:30 in a.b", ["3.14 is at 10:30 in a.b"]),
        ("A line\nanother.\n\n  \n  - a third", ["A line\n", "another.\n\n  \n", "  - a third"]),
        ("你好。再见！「是。」完", ["你好。", "再见！", "「是。」", "完"]),
        ("", []),
        ("\n", ["\n"]),
    ],
)
def test_a_sentence_ends_with_a_line_or_a_mark_before_a_space(text, sentences):
    assert split_sentences(text) == sentences


@given(st.text(alphabet='ab .!?:\n\r\t"”。\u2028é🙂'))
def test_sentences_joined_are_the_text_again(text):
    found = split_sentences(text)
    assert "".join(found) == text
    assert all(found)


@given(st.text(alphabet="ab .!\n"))
def test_paragraphs_are_the_sentences_up_to_the_end_of_a_line(text):
    sentences = split_sentences(text)
    numbers, paragraphs = paragraphs_of(sentences)
    assert "".join(paragraphs) == text
    assert all("\n" not in p.rstrip() for p in paragraphs)
    for sentence, number in zip(sentences, numbers.tolist(), strict=True):
        assert sentence in paragraphs[number]
    assert numbers.tolist() == sorted(numbers.tolist())
