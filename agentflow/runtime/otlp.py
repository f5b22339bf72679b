"""A stored run as OpenTelemetry spans in OTLP/JSON: what `--otel` would have sent, without an installation of it.

One trace for each process that was at work on the run. Ids are made from the run's and the spans' order, so that the
same run gives the same document.
Source: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from agentflow.errors import RunError
from agentflow.runtime.events import Event
from agentflow.runtime.telling import NAME, Names, Telling

INTERNAL, ERROR = 1, 2
"""A span's kind, and the code of a status, as numbers of the protocol."""


@dataclass(eq=False)
class StoredSpan:
    """A span as it is told, with the methods of OpenTelemetry's own.

    Attributes:
        trace, number: which trace it is in, and its place there.
    """

    trace: str
    number: int
    name: str
    start: int
    parent: StoredSpan | None
    attributes: dict[str, Any]
    stop: int = 0
    status: int | None = None
    events: list[tuple[str, dict[str, Any], int]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Eight bytes in hexadecimal."""
        return blake3(f"{self.trace}/{self.number}".encode()).hexdigest(8)

    def set_attributes(self, attributes: Mapping[str, Any], /) -> None:
        """Say more about it."""
        self.attributes.update(attributes)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None, timestamp: int | None, /) -> None:
        """Say that something happened in it."""
        self.events.append((name, dict(attributes or {}), timestamp or 0))

    def set_status(self, status: int, /) -> None:
        """Say that it has failed."""
        self.status = status

    def end(self, end_time: int | None, /) -> None:
        """Say that it is over."""
        self.stop = end_time or 0

    def to_json(self) -> dict[str, Any]:
        """As the protocol has it."""
        return {
            "traceId": self.trace,
            "spanId": self.id,
            **({"parentSpanId": self.parent.id} if self.parent is not None else {}),
            "name": self.name,
            "kind": INTERNAL,
            "startTimeUnixNano": str(self.start),
            "endTimeUnixNano": str(self.stop),
            "attributes": _pairs(self.attributes),
            "events": [
                {"timeUnixNano": str(at), "name": name, "attributes": _pairs(about)} for name, about, at in self.events
            ],
            "status": {} if self.status is None else {"code": self.status},
        }


def otlp_json(run: str, manifest: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The spans of a stored run as one request of the protocol.

    Args:
        run: its name, of which the ids are made.
        events: of its log.

    Raises:
        RunError: an earlier version stored it, which did not say when it began.
    """
    spans = [span.to_json() for span in stored_spans(run, manifest, events)]
    scope = {"scope": {"name": NAME}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": _pairs({"service.name": NAME})}, "scopeSpans": [scope]}]}


def stored_spans(run: str, manifest: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> list[StoredSpan]:
    """The spans of a stored run, in the order in which they began. Raises `RunError` as `otlp_json` does."""
    found: list[StoredSpan] = []
    names = Names.of(str(manifest.get("workflow", "")), manifest)
    for process, told in enumerate(_processes(events)):
        trace = blake3(f"{run}/{process}".encode()).hexdigest(16)

        def begin(
            name: str, at: int, parent: StoredSpan | None, about: dict[str, Any], trace: str = trace
        ) -> StoredSpan:
            found.append(StoredSpan(trace, len(found), name, at, parent, dict(about)))
            return found[-1]

        telling: Telling[StoredSpan] = Telling(names, begin, ERROR)
        for event in told:
            telling(event)
        telling.close()
    return found


def _processes(events: Iterable[Mapping[str, Any]]) -> Iterator[list[Event]]:
    """The events of each process that was at work on a run."""
    told: list[Event] = []
    for event in events:
        if event["kind"] == "run_started":
            if told:
                yield told
            told = []
            if "time" not in event["data"]:
                raise RunError("This run was stored by an earlier version, which did not say when it began.")
        told.append(Event(**event))
    if told:
        yield told


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(inner) for inner in value]}}
    return {"stringValue": str(value)}
