from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.tasks import scores

# Words and marks where implementations go wrong: articles, punctuation, closed answers, other scripts.
TRICKY = "a An THE the yes No noanswer Paris über İ ß 东京 x1 1,234 o'clock U.S. “said” - — ... (the)"
PIECES = st.sampled_from([*TRICKY.split(), "\u2028", "\u00a0", "\t", ""])
TEXTS = st.one_of(st.lists(PIECES, max_size=6).map(" ".join), st.text(max_size=12))


def slow_normalise(text: str) -> str:
    """Do by hand, letter by letter, what the package does with patterns."""
    kept = [letter for letter in text.lower() if letter not in string.punctuation]
    words: list[str] = []
    word = ""
    for letter in [*kept, " "]:
        if letter.isalnum():
            word += letter
            continue
        words.append(" " if word in ("a", "an", "the") else word)
        words.append(letter)
        word = ""
    return " ".join("".join(words).split())


def slow_f1(gold: str, prediction: str) -> float:
    """Count shared words by striking them out one at a time."""
    left, right = slow_normalise(gold), slow_normalise(prediction)
    for closed in ("yes", "no", "noanswer"):
        if closed in (left, right) and left != right:
            return 0.0
    unmatched = left.split()
    shared = 0
    for word in right.split():
        if word in unmatched:
            unmatched.remove(word)
            shared += 1
    total = len(left.split()) + len(right.split())
    return 2 * shared / total if total else 0.0


@given(TEXTS)
def test_normalising_agrees_with_a_letter_by_letter_implementation(text: str) -> None:
    assert scores.normalise(text) == slow_normalise(text)


@given(TEXTS)
def test_normalising_twice_changes_nothing_unless_removal_made_an_article(text: str) -> None:
    once = scores.normalise(text)
    assert once == " ".join(once.split())
    assert not set(once.split()) & {"a", "an", "the"}


@given(TEXTS, TEXTS)
def test_f1_and_em_agree_with_the_second_implementation(gold: str, prediction: str) -> None:
    assert scores.f1(gold, prediction) == pytest.approx(slow_f1(gold, prediction))
    assert scores.exact_match(gold, prediction) == float(slow_normalise(gold) == slow_normalise(prediction))


@given(TEXTS, TEXTS)
def test_scores_are_bounded_and_f1_is_symmetric(gold: str, prediction: str) -> None:
    result = scores.answer_scores([gold], prediction)
    assert all(0.0 <= value <= 1.0 for value in result.values())
    assert scores.f1(gold, prediction) == pytest.approx(scores.f1(prediction, gold))
    assert result["contains"] >= result["em"]


@pytest.mark.parametrize(
    ("gold", "prediction", "em", "f1"),
    [
        ("The Beatles", "beatles!", 1.0, 1.0),
        ("yes", "Yes.", 1.0, 1.0),
        ("yes", "yes it is", 0.0, 0.0),
        ("no", "yes", 0.0, 0.0),
        ("Yes Minister", "yes", 0.0, 0.0),
        ("noanswer", "no answer", 0.0, 0.0),
        ("yes yes", "yes yes", 1.0, 1.0),
        ("New York New York", "New York", 0.0, 2 / 3),
        ("one two", "two one", 0.0, 1.0),
        ("", "", 1.0, 0.0),
        ("the", "a", 1.0, 0.0),
        ("", "Paris", 0.0, 0.0),
        ("1,234", "1234", 1.0, 1.0),
        ("Jean-Pierre", "jeanpierre", 1.0, 1.0),
    ],
)
def test_known_answers_score_as_the_official_script_scores_them(
    gold: str, prediction: str, em: float, f1: float
) -> None:
    assert scores.exact_match(gold, prediction) == em
    assert scores.f1(gold, prediction) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("gold", "prediction", "expected"),
    [
        ("4821", "The code is 4821.", 1.0),
        ("4821", "The code is 48215.", 0.0),
        ("Paris", "“Paris”, I think", 1.0),
        ("art", "a party", 0.0),
        ("the", "anything", 0.0),
        ("the", "a", 1.0),
        ("c++", "He wrote C", 1.0),
        (".*", "anything", 0.0),
    ],
)
def test_contains_wants_whole_words(gold: str, prediction: str, expected: float) -> None:
    assert scores.contains(gold, prediction) == expected


def test_naming_every_candidate_wins_only_for_the_first() -> None:
    assert scores.named_first("Ann", ["Ann", "Bob"], "Ann or Bob") == 1.0
    assert scores.named_first("Bob", ["Ann", "Bob"], "Ann or Bob") == 0.0
    assert scores.named_first("Bob", ["Ann", "Bob"], "neither") == 0.0


def test_best_over_takes_the_most_favourable_answer_and_needs_one() -> None:
    assert scores.best_over(["x", "Paris"], lambda gold: scores.f1(gold, "Paris")) == 1.0
    with pytest.raises(ValueError, match="empty"):
        scores.best_over([], lambda gold: 1.0)
