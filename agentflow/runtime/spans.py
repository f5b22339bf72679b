"""A stored run's events as spans of time: one for every try of a unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentflow.runtime.scheduler import Unit

How = Literal["done", "reused", "failed", "skipped", "tried again", "unfinished"]

_ENDS: dict[str, How] = {
    "node_finished": "done",
    "node_reused": "reused",
    "node_failed": "failed",
    "node_skipped": "skipped",
    "node_retried": "tried again",
}


@dataclass(frozen=True)
class Span:
    """One try of a unit. What never began has no length.

    Attributes:
        start, end: seconds since the run began. Of a run that was resumed, the time between two processes is left out.
        said: the error, or why it was left out.
        figures: of its result, as `NodeResult.to_json` gives them.
    """

    unit: Unit
    start: float
    end: float
    how: How
    said: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """What it received, as `MessageResult` has it; only a result that was made now was paid for now."""
        return list(self.figures.get("messages", ())) if self.how == "done" else []

    @property
    def handover(self) -> float:
        """Seconds that its messages took to be made and put in."""
        return float(sum(m["encode_seconds"] + m["inject_seconds"] for m in self.messages))


@dataclass(frozen=True)
class Spans:
    """All spans in the order in which they began, when each process after the first began, and the end."""

    spans: tuple[Span, ...]
    resumed: tuple[float, ...]
    end: float


def spans_of(events: Iterable[Mapping[str, Any]]) -> Spans:
    """Read the events of a stored run."""
    found: list[Span] = []
    resumed: list[float] = []
    begun: dict[Unit, float] = {}
    before = last = 0.0
    is_first = True

    def cut() -> None:
        found.extend(Span(unit, start, last, "unfinished") for unit, start in begun.items())
        begun.clear()

    for event in events:
        if event["kind"] == "run_started":
            cut()
            before = last
            if not is_first:
                resumed.append(before)
            is_first = False
        last = max(last, before + event["at"])
        unit = Unit(event["item"], event["node"], event["child"])
        if event["kind"] == "node_started":
            begun[unit] = last
        elif event["kind"] in _ENDS:
            data, how = event["data"], _ENDS[event["kind"]]
            said = str(data.get("error") or data.get("because") or "")
            found.append(Span(unit, begun.pop(unit, last), last, how, said, data))
    cut()
    return Spans(tuple(sorted(found, key=lambda span: span.start)), tuple(resumed), last)
