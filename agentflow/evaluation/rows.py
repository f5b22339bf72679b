"""What a comparison measures: one row for each item and arm. Everything else is computed from these rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

NO_SUCH_CONTROL = "no such control here"
"""How the error of a row begins whose control can't be made for its workflow: a reason, not a failure."""

ArmKind = Literal["channel", "control"]


@dataclass(frozen=True)
class Arm:
    """One way of answering an item: a channel, or a control.

    Attributes:
        name: unique in the comparison: "cache", "mismatched(cache)", "no message".
        kind: a control proves something about a channel and competes with none.
        channel: the channel that is used, or that the control is about; "" when there is none.
        settings: of that channel.
        control: the control's name; "" for a channel.
    """

    name: str
    kind: ArmKind
    channel: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    control: str = ""


@dataclass(frozen=True)
class Row:
    """One item over one arm.

    Attributes:
        item: the task's id; rows of different arms are paired by it.
        scores: every metric of the task, in [0, 1]; empty when the item failed.
        answers: what was answered, one for each question of the item.
        nll: mean negative log-likelihood per token of the right answer, in nats; None where it can't be had.
        kl: mean KL divergence per token (nats) of this arm's next-token distribution along the right answer from
            that of the receiver that read the whole text; None where there is no such reference.
        prefilled: tokens computed for the receivers' prompts and by channels on the way; `reused` stood in a cache.
        generated: tokens the receivers generated, and channels on the way.
        positions: entries that the receivers could attend to.
        messages: how many the receivers got; `kept` positions travelled in them (0 for the whole text).
        bytes: of all payloads, as they would travel.
        encode_seconds, inject_seconds: of the hand-over, summed over the receivers.
        first_token_seconds: mean over the receivers, hand-over included.
        seconds: the receivers', hand-over included, to the last token, summed; what senders take is the same for all.
        peak_bytes: most memory the process held while the item ran (0 where it can't be told).
        steps: commands of the item's episode; None where the task has no episodes.
        error: why the item failed; "" when it did not.
        mark: of what the arm's channel depends on besides its settings: an adapter's weights. A row of another one is
            computed anew.
    """

    item: str
    arm: str
    group: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    answers: tuple[str, ...] = ()
    nll: float | None = None
    kl: float | None = None
    prefilled: int = 0
    reused: int = 0
    generated: int = 0
    positions: int = 0
    messages: int = 0
    kept: int = 0
    bytes: int = 0
    encode_seconds: float = 0.0
    inject_seconds: float = 0.0
    first_token_seconds: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0
    steps: int | None = None
    error: str = ""
    mark: str = ""

    @property
    def message_positions(self) -> int:
        """Positions that messages took: what stood in a cache, or the tokens of a text that a channel counted."""
        return self.reused or self.kept

    @property
    def impossible(self) -> bool:
        """Whether it is of a control that can't be made here, as against one that failed."""
        return self.error.startswith(NO_SUCH_CONTROL)

    def to_json(self) -> dict[str, Any]:
        """A plain mapping."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """The reverse of `to_json`."""
        return cls(**{**data, "answers": tuple(data["answers"])})


@dataclass(frozen=True)
class Comparison:
    """A finished (or stopped) comparison.

    Attributes:
        workflow, task: names; `task_settings` as they were used.
        metrics: the task's metrics; `primary` is the one that decides.
        reference: the arm that the others are paired with.
        items: ids in their order; `rows` may lack some when the comparison was stopped.
        seed: of sampling and of the bootstrap.
        machine: processor, threads, versions, model fingerprints: whatever makes the figures repeatable.
        command: the command line that made it.
        published: figures of papers to stand beside ours, each {name, figure, source}.
    """

    workflow: str
    task: str
    task_settings: dict[str, Any]
    metrics: tuple[str, ...]
    primary: str
    reference: str
    arms: tuple[Arm, ...]
    items: tuple[str, ...]
    rows: tuple[Row, ...]
    seed: int
    machine: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    published: tuple[dict[str, str], ...] = ()

    def of(self, arm: str) -> list[Row]:
        """The rows of one arm, in the order of the items."""
        place = {item: n for n, item in enumerate(self.items)}
        return sorted((r for r in self.rows if r.arm == arm), key=lambda r: place[r.item])

    def to_json(self) -> dict[str, Any]:
        """A plain mapping."""
        return asdict(self)
