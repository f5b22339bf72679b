"""What a node leaves behind: plain numbers and text, ready for the run store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentflow.tools.base import text_of


@dataclass(frozen=True)
class MessageResult:
    """One message that a node received.

    Attributes:
        bytes: of the payload, as it would travel.
        tokens: length of the sender's trajectory where it is known; `kept` of them travelled.
        prefilled, generated: tokens that models computed on the way, for the channel.
        digest: of the payload file, where one was written.
        warnings: what somebody should know about this message, in words.
    """

    sender: str
    channel: str
    bytes: int
    tokens: int
    kept: int
    encode_seconds: float
    inject_seconds: float
    losses: tuple[str, ...] = ()
    digest: str = ""
    stats: dict[str, float] | None = None
    prefilled: int = 0
    generated: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryResult:
    """What was done so that a turn fits into its agent's memory; tokens are counted with the longest answer.

    Attributes:
        policy: the agent's.
        limit: of tokens; the turn would have held `tokens`, and holds `held`.
        dropped: the oldest turns, left out whole.
        kept: positions of the conversation so far that are left `of` those that it had, where it was compacted.
        stats: figures of the compaction.
        prefilled: tokens computed for this.
    """

    policy: str
    limit: int
    held: int
    tokens: int = 0
    dropped: int = 0
    kept: int = 0
    of: int = 0
    stats: dict[str, float] | None = None
    prefilled: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        done = f"{self.dropped} oldest turns dropped" if self.dropped else f"{self.kept} of {self.of} positions kept"
        return f"memory of {self.limit:,} tokens: {self.tokens:,} needed, {done}"


@dataclass(frozen=True)
class NodeResult:
    """One node's (or map child's) answer and what it cost.

    Attributes:
        prefilled: tokens computed for its prompt; `reused` stood in a cache already.
        first_token_seconds: from the start of the hand-over to the first token: encode, inject, prefill.
        seconds: the same to the last token.
        value: what a tool gave, or what an answer with a schema is, as plain JSON values.
        memory: what was done to fit the turn into its agent's memory; None where it fitted.
        warnings: what somebody should know about how the answer came, in words.
    """

    text: str
    finish: str
    prefilled: int
    reused: int
    generated: int
    first_token_seconds: float
    seconds: float
    messages: tuple[MessageResult, ...] = ()
    value: Any = None
    memory: MemoryResult | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def unspoken(cls, text: str, finish: str) -> NodeResult:
        """What stands for the answer of a unit that gave none."""
        return cls(text, finish, 0, 0, 0, 0.0, 0.0)

    @classmethod
    def of_tool(cls, result: Any, seconds: float) -> NodeResult:
        """What a tool's result leaves behind."""
        return cls(text_of(result), "tool", 0, 0, 0, 0.0, seconds, value=result)

    @property
    def shown(self) -> Any:
        """What templates call its value."""
        return self.text if self.value is None and self.finish != "tool" else self.value

    @property
    def all_prefilled(self) -> int:
        """With what was computed on the way, by the channels of its messages and for its memory."""
        for_memory = self.memory.prefilled if self.memory is not None else 0
        return self.prefilled + for_memory + sum(m.prefilled for m in self.messages)

    @property
    def all_generated(self) -> int:
        """With what was generated for its messages on the way."""
        return self.generated + sum(m.generated for m in self.messages)

    def to_json(self) -> dict[str, Any]:
        """A plain mapping; `asdict` would copy every value in it."""
        memory = None if self.memory is None else dict(vars(self.memory))
        return {**vars(self), "messages": tuple(dict(vars(message)) for message in self.messages), "memory": memory}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NodeResult:
        """The reverse of `to_json`."""
        words = [{key: tuple(m.get(key, ())) for key in ("losses", "warnings")} for m in data["messages"]]
        messages = tuple(MessageResult(**{**m, **w}) for m, w in zip(data["messages"], words, strict=True))
        memory = MemoryResult(**data["memory"]) if data.get("memory") is not None else None
        warnings = tuple(data.get("warnings", ()))
        return cls(**{**data, "messages": messages, "memory": memory, "warnings": warnings})


@dataclass(frozen=True)
class ItemResult:
    """One pass through the workflow.

    Attributes:
        nodes: results by node; a mapped node has one for each child.
        outputs: the workflow's outputs, rendered; empty when something failed.
        errors: what failed, or was skipped because of that, by unit.
        skipped: what was left out because the workflow says so, with the reason, by unit.
        passed: nodes of rounds that a loop did not come to, and the node of the last round that stands for them.
    """

    item: str
    nodes: dict[str, tuple[NodeResult, ...]]
    outputs: dict[str, Any]
    errors: dict[str, str]
    skipped: dict[str, str] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)

    def answers(self, node: str) -> list[str]:
        """The texts of a node, one for each child of a map; of one in a loop, in the last round it came to."""
        return [r.text for r in self.nodes.get(self.passed.get(node, node), ())]

    def scored(self, node: str, questions: int) -> tuple[str, ...]:
        """The texts of the node that answers; an empty one for each question where the node was left out."""
        found = tuple(self.answers(node))
        return found if found or not self.skipped else ("",) * questions
