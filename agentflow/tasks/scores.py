"""Answer scores: the official SQuAD / HotpotQA exact match and F1, and two containment measures.

Defined by SQuAD (arXiv 1606.05250, section 6.1) and HotpotQA (arXiv 1809.09600; `hotpot_evaluate_v1.py`).
Every score is in [0, 1]. Normalised text is lower case, without ASCII punctuation, without the English
articles, with single spaces.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

# HotpotQA gives no partial credit around these: "yes it is" against "yes" scores 0.
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalise(text: str) -> str:
    """Return the text as both official scripts compare it; punctuation goes before the articles do."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(gold: str, prediction: str) -> float:
    """Return 1.0 if both are the same after normalisation, else 0.0."""
    return float(normalise(gold) == normalise(prediction))


def f1(gold: str, prediction: str) -> float:
    """Return the HotpotQA F1 of the normalised words, counted as bags.

    0.0 when no word is shared (so also for two empty texts, as in the official script), and when either side
    is exactly yes, no or noanswer and the other is not the same.
    """
    wanted, given = normalise(gold), normalise(prediction)
    if wanted != given and (wanted in _CLOSED_ANSWERS or given in _CLOSED_ANSWERS):
        return 0.0
    gold_words, given_words = wanted.split(), given.split()
    shared = (Counter(gold_words) & Counter(given_words)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(given_words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def find(phrase: str, text: str) -> int | None:
    """Return where the normalised phrase first stands as whole words in the normalised text, None if nowhere.

    A phrase that normalises to nothing stands (at 0) only in a text that does as well.
    """
    wanted, given = normalise(phrase), normalise(text)
    if not wanted:
        return None if given else 0
    match = re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", given)
    return match.start() if match else None


def contains(gold: str, prediction: str) -> float:
    """Return 1.0 if the gold answer stands in the prediction as whole words, after normalisation."""
    return float(find(gold, prediction) is not None)


def named_first(gold: str, others: Iterable[str], prediction: str) -> float:
    """Return 1.0 if the prediction contains the gold answer and names none of the others before it.

    Unlike `contains`, a prediction that lists every candidate can't win by it.
    """
    place = find(gold, prediction)
    if place is None:
        return 0.0
    rivals = (find(other, prediction) for other in others if normalise(other) != normalise(gold))
    return float(all(rival is None or rival > place for rival in rivals))


def best_over(golds: Iterable[str], fn: Callable[[str], float]) -> float:
    """Return the highest `fn(gold)` over the acceptable answers; `ValueError` if there are none."""
    return max(fn(gold) for gold in golds)


def answer_scores(golds: Iterable[str], prediction: str) -> dict[str, float]:
    """Return `em`, `f1` and `contains`, each the best over the acceptable answers."""
    answers = tuple(golds)
    return {
        "em": best_over(answers, lambda gold: exact_match(gold, prediction)),
        "f1": best_over(answers, lambda gold: f1(gold, prediction)),
        "contains": best_over(answers, lambda gold: contains(gold, prediction)),
    }
