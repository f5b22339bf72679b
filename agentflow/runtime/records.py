"""What a run keeps of a finished unit: its result, and enough of its answer to take the turn again without decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from blake3 import blake3

from agentflow.models.requests import Finish, Generation, Request
from agentflow.runtime.results import NodeResult
from agentflow.runtime.scheduler import Unit

FORM = 2
"""Of stored results and of the keys they are found by; results of another form are not used."""

Key = Mapping[str, str]
"""A unit's content key: a digest of each thing that its answer depends on, by name. Empty where there is none."""


@dataclass(frozen=True)
class Answer:
    """What was said, to the letter: the text before it is stripped, and its tokens."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish | Literal["fallback", "tool"]

    @classmethod
    def of(cls, generation: Generation) -> Answer:
        """The answer that was generated."""
        return cls(generation.text, generation.token_ids, generation.finish)

    def request(self, asked: Request) -> tuple[int, ...]:
        """The tokens to prefill so that the cache is the one that decoding left.

        The last token of an answer is chosen and never computed, but where time ran out after its computation.
        """
        computed = self.token_ids if self.finish == "deadline" else self.token_ids[:-1]
        return (*asked.token_ids, *computed)


@dataclass(frozen=True)
class Record:
    """A unit that is finished.

    Attributes:
        key: of everything that the answer depends on (see `runtime.questions`).
        model: the weights that gave it; "" for a tool.
    """

    unit: Unit
    key: Key
    model: str
    result: NodeResult
    answer: Answer

    @property
    def digest(self) -> str:
        """Of question and answer: what the units that depend on this one have seen of it."""
        said = "\0".join(
            [json.dumps(dict(self.key), sort_keys=True), self.answer.text, *map(str, self.answer.token_ids)]
        )
        return blake3(said.encode("utf-8", "surrogatepass")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """A plain mapping."""
        return {
            "form": FORM,
            "key": dict(self.key),
            "model": self.model,
            **vars(self.unit),
            "answer": dict(vars(self.answer)),
            "result": self.result.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """The reverse of `to_json`.

        Raises:
            ValueError: it is of another form.
            KeyError, TypeError: it is no record.
        """
        if data["form"] != FORM:
            raise ValueError(f"a record of form {data['form']}")
        said = data["answer"]
        return cls(
            Unit(data["item"], data["node"], data["child"]),
            data["key"],
            data["model"],
            NodeResult.from_json(data["result"]),
            Answer(said["text"], tuple(said["token_ids"]), said["finish"]),
        )
