"""Generated facts that the sender alone knows: the clean measure of what a channel carries.

Values (codes, made-up names, phrases) are drawn at random, so no prior can guess them: with nothing passed
on, a right answer is luck of 1 in 9,000 or less. Sentences suit a model of 135 M parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from agentflow.errors import UserError
from agentflow.tasks.base import MOST_MADE, Item, Task, TaskSettings, check_limit
from agentflow.tasks.draws import Draws
from agentflow.tasks.scores import best_over, contains, named_first
from agentflow.tasks.words import ADJECTIVES, NOUNS, distinct, made_up_name, unlike_names

# Easy is for models of 100 M parameters; hard needs two steps over 16 people.
LEVELS: dict[str, dict[str, int]] = {
    "easy": {"facts": 4, "questions": 1, "hops": 1},
    "medium": {"facts": 8, "questions": 2, "hops": 1},
    "hard": {"facts": 16, "questions": 4, "hops": 2},
}
MAX_FACTS = 64
_ROOM_LETTERS = "BCDEFGHJKLMNPQRSTUVWXYZ"
_CODE = re.compile(r"(?<![0-9A-Za-z])[0-9]{4}(?![0-9A-Za-z])")


class PrivateFactsSettings(TaskSettings):
    """How many facts, of which kind, and how hard they are to use."""

    facts: int = Field(default=8, ge=1, le=MAX_FACTS, description="Facts (people) per item.")
    questions: int = Field(default=2, ge=1, description="Questions per item, at most as many as facts.")
    hops: Literal[1, 2] = Field(
        default=1,
        description="1: one sentence holds the answer. 2: one names a room, another the room's value, so "
        "each fact is two sentences.",
    )
    kind: Literal["digits", "names", "text"] = Field(
        default="digits", description="digits: 4-digit codes; names: made-up surnames; text: 2 or 3 words."
    )
    level: Literal["easy", "medium", "hard"] | None = Field(
        default=None, description="A preset of facts, questions and hops; any of them given as well wins."
    )
    count: int = Field(default=100, ge=1, le=MOST_MADE, description="Items to make when no limit is given.")

    @model_validator(mode="before")
    @classmethod
    def _apply_level(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        level = given.get("level")
        return {**LEVELS[level], **given} if isinstance(level, str) and level in LEVELS else given

    @model_validator(mode="after")
    def _enough_facts(self) -> PrivateFactsSettings:
        if self.questions > self.facts:
            raise ValueError(f"{self.questions} questions can't be asked about {self.facts} facts")
        return self


@dataclass(frozen=True)
class _Wording:
    """The sentences of one kind of value; `{who}`, `{room}` and `{value}` are filled in."""

    fact: str
    question: str
    place: str
    room_fact: str
    room_question: str


_WORDINGS = {
    "digits": _Wording(
        fact="The locker code of {who} is {value}.",
        question="What is the locker code of {who}?",
        place="The locker of {who} is in room {room}.",
        room_fact="The code of room {room} is {value}.",
        room_question="What is the code of the room with the locker of {who}?",
    ),
    "names": _Wording(
        fact="The surname of {who} is {value}.",
        question="What is the surname of {who}?",
        place="The desk of {who} is in room {room}.",
        room_fact="The owner of room {room} is {value}.",
        room_question="Who is the owner of the room with the desk of {who}?",
    ),
    "text": _Wording(
        fact="The password of {who} is {value}.",
        question="What is the password of {who}?",
        place="The desk of {who} is in room {room}.",
        room_fact="The password of room {room} is {value}.",
        room_question="What is the password of the room with the desk of {who}?",
    ),
}


class PrivateFacts(Task):
    """Inputs: `facts` (the sender's sentences) and `questions`; one answer per question; group is the kind.

    `exact`, for digits: the first 4-digit code of the prediction is the right one. For names and text: the
    prediction contains the right value as whole words and names no other value of the item before it. So a
    prediction that recites every fact does not score. `contains` leaves the order out. `recalled`: the
    prediction contains any value of the item, the right one or not; it shows that content crossed even where
    the receiver is too weak to pick the right fact.
    """

    name: ClassVar[str] = "private_facts"
    Settings: ClassVar[type[TaskSettings]] = PrivateFactsSettings
    needs_data: ClassVar[bool] = False
    primary: ClassVar[str] = "exact"
    metrics: ClassVar[tuple[str, ...]] = ("exact", "contains", "recalled")
    private: ClassVar[tuple[str, ...]] = ("facts",)
    settings: PrivateFactsSettings

    def items(self, *, data: Path | None, limit: int | None, seed: int) -> list[Item]:
        """Return `limit` items (None: the setting `count`); item i depends on seed, i and settings only."""
        check_limit(limit, MOST_MADE)
        if data is not None:
            raise UserError("Task 'private_facts' makes its own items.", where=str(data), fix="Drop --data.")
        return [self._make(index, seed) for index in range(limit or self.settings.count)]

    def score_answer(self, item: Item, question: int, prediction: str) -> dict[str, float]:
        """Return exact, contains and recalled (each 0.0 or 1.0) for one question."""
        (gold,) = item.answers[question]
        if item.group == "digits":
            code = _CODE.search(prediction)
            exact = float(code is not None and code.group() == gold)
        else:
            exact = named_first(gold, item.meta["values"], prediction)
        recalled = best_over(item.meta["values"], lambda value: contains(value, prediction))
        return {"exact": exact, "contains": contains(gold, prediction), "recalled": recalled}

    def _make(self, index: int, seed: int) -> Item:
        chosen = self.settings
        draws = Draws(f"{seed}:{index}")
        people = unlike_names(chosen.facts, draws)
        values = _VALUES[chosen.kind](chosen.facts, draws)
        wording = _WORDINGS[chosen.kind]
        if chosen.hops == 1:
            facts = [wording.fact.format(who=who, value=value) for who, value in zip(people, values, strict=True)]
        else:
            rooms = _rooms(chosen.facts, draws)
            places = [wording.place.format(who=who, room=room) for who, room in zip(people, rooms, strict=True)]
            pairs = zip(rooms, values, strict=True)
            facts = draws.shuffled(places + [wording.room_fact.format(room=room, value=value) for room, value in pairs])
        asked = draws.sample(range(chosen.facts), chosen.questions)
        template = wording.question if chosen.hops == 1 else wording.room_question
        return Item(
            id=f"{chosen.kind}-{chosen.hops}hop-{chosen.facts}x{chosen.questions}-seed{seed}-{index}",
            inputs={"facts": facts, "questions": [template.format(who=people[at]) for at in asked]},
            answers=tuple((values[at],) for at in asked),
            group=chosen.kind,
            meta={"values": values, "people": people},
        )


def _digits(count: int, draws: Draws) -> list[str]:
    return distinct(count, lambda: str(draws.between(1000, 9999)))


def _names(count: int, draws: Draws) -> list[str]:
    return distinct(count, lambda: made_up_name(draws))


def _phrases(count: int, draws: Draws) -> list[str]:
    """Return phrases that share no noun, half of them ending in a made-up word."""
    phrases = []
    for noun in draws.sample(NOUNS, count):
        words = [draws.choice(ADJECTIVES), noun]
        if draws.coin():
            words.append(made_up_name(draws).lower())
        phrases.append(" ".join(words))
    return phrases


def _rooms(count: int, draws: Draws) -> list[str]:
    """Return different room names: a letter each, or two where there are too few letters."""
    letters = tuple(_ROOM_LETTERS)
    if count <= len(letters):
        return draws.sample(letters, count)
    return draws.sample([first + second for first in letters for second in letters], count)


_VALUES: dict[str, Callable[[int, Draws], list[str]]] = {"digits": _digits, "names": _names, "text": _phrases}
