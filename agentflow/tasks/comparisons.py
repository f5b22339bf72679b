"""Made-up comparisons: two names, one number each, and a question that needs both numbers."""

from __future__ import annotations

from dataclasses import dataclass

from agentflow.tasks.draws import Draws
from agentflow.tasks.words import FIRST_NAMES, distinct, made_up_name


@dataclass(frozen=True)
class Topic:
    """What is compared: sentences with `{name}`, `{value}`, `{x}`, `{y}`, and the range of the numbers.

    Numbers are `unit` times whole numbers from `low` to `high`. The two of a question differ by 1 to `gap`,
    so one may lie that far outside; a gap small against the range keeps one number from telling the answer.
    `least`: the smaller number wins. `people`: names are first name and surname, else one word.
    """

    fact: str
    question: str
    low: int
    high: int
    gap: int
    unit: int = 1
    least: bool = False
    people: bool = True


TOPICS: dict[str, Topic] = {
    "birth": Topic(
        fact="{name} was born in {value}.",
        question="Who was born earlier, {x} or {y}?",
        low=1860,
        high=1989,
        gap=10,
        least=True,
    ),
    "height": Topic(
        fact="{name} is {value} cm tall.",
        question="Who is taller, {x} or {y}?",
        low=150,
        high=205,
        gap=5,
    ),
    "population": Topic(
        fact="The town of {name} has {value} inhabitants.",
        question="Which town has more inhabitants, {x} or {y}?",
        low=100,
        high=900,
        gap=60,
        unit=100,
        people=False,
    ),
}


@dataclass(frozen=True)
class Comparison:
    """A question, each debater's sentences, the candidates in the order they are named, and the answer."""

    question: str
    evidence_a: list[str]
    evidence_b: list[str]
    candidates: list[str]
    answer: str


def compare(topic: Topic, distractors: int, draws: Draws) -> Comparison:
    """Return a comparison; each side knows one candidate and `distractors` names nobody asks about.

    One candidate's number is uniform, the other's lies above or below it on the toss of a coin, and either
    may be on either side: so one side's number says next to nothing about who wins.
    """
    names = _names(topic, 2 * (distractors + 1), draws)
    numbers = [draws.between(topic.low, topic.high) for _ in names]
    first, second = draws.shuffled((0, 1))
    step = draws.between(1, topic.gap)
    numbers[second] = numbers[first] + (step if draws.coin() else -step)
    lines = [
        topic.fact.format(name=name, value=number * topic.unit) for name, number in zip(names, numbers, strict=True)
    ]
    rest = lines[2:]
    x, y = draws.shuffled(names[:2])
    smaller, larger = sorted((0, 1), key=lambda at: numbers[at])
    return Comparison(
        question=topic.question.format(x=x, y=y),
        evidence_a=draws.shuffled([lines[0], *rest[:distractors]]),
        evidence_b=draws.shuffled([lines[1], *rest[distractors:]]),
        candidates=[x, y],
        answer=names[smaller if topic.least else larger],
    )


def _names(topic: Topic, count: int, draws: Draws) -> list[str]:
    """Return different names that share no word, so that naming one is never half naming another."""
    surnames = distinct(count, lambda: made_up_name(draws))
    if not topic.people:
        return surnames
    return [f"{given} {surname}" for given, surname in zip(draws.sample(FIRST_NAMES, count), surnames, strict=True)]
