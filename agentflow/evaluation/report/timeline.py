"""A stored run as one HTML page: every unit a bar, by item and node. Nothing is fetched, and no script is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Template

from agentflow.evaluation.report.format import amount, number, of_one_unit, seconds, short, visible
from agentflow.evaluation.report.pages import page, resource
from agentflow.runtime.spans import Span, Spans
from agentflow.workflow.frames import address

MOST_ITEMS = 50
MOST_TROUBLES = 200
MOST_TRACKS = 16
"""Bars above one another in a row; what runs beside still more is drawn on the last."""
_TICKS = 6
_TONES = 5


@dataclass(frozen=True)
class _Bar:
    left: float
    width: float
    track: int
    tone: str
    how: str
    title: str
    handover: float


@dataclass
class _Row:
    node: str
    bars: list[_Bar] = field(default_factory=list)
    received: str = ""
    ends: list[float] = field(default_factory=list)

    @property
    def tracks(self) -> int:
        return max(1, len(self.ends))

    def track(self, span: Span) -> int:
        """The first track that is free when a span begins."""
        free = next((n for n, end in enumerate(self.ends) if end <= span.start), len(self.ends))
        if free == len(self.ends) and free < MOST_TRACKS:
            self.ends.append(0.0)
        free = min(free, MOST_TRACKS - 1)
        self.ends[free] = span.end
        return free


@dataclass
class _Item:
    name: str
    rows: list[_Row]


@dataclass
class _Handover:
    sender: str
    receiver: str
    channel: str
    messages: int = 0
    bytes: int = 0
    tokens: int = 0
    kept: int = 0
    encode: float = 0.0
    inject: float = 0.0


def timeline_html(run: str, manifest: Mapping[str, Any], state: str, found: Spans) -> str:
    """The page of a run. Every foreign text is escaped, and a content policy lets nothing load.

    Args:
        run: its name.
        state: how it ended.
    """
    models = manifest.get("models", {})
    tones = {model: f"m{1 + n % _TONES}" for n, model in enumerate(dict.fromkeys(models.values()))}
    if not models.keys() >= set(manifest.get("nodes", ())):
        tones["tool"] = "m0"
    of_node = {node: tones[model] for node, model in models.items()}
    shown = list(dict.fromkeys(span.unit.item for span in found.spans))
    items = [_item(name, manifest, found, of_node) for name in shown[:MOST_ITEMS]]
    troubles = [span for span in found.spans if span.said]
    return _template().render(
        run=run,
        workflow=str(manifest.get("workflow", "")),
        state=state,
        spans=found.spans,
        end=found.end,
        resumed=found.resumed,
        lines=[_share(at, found.end) for at in found.resumed],
        ticks=[
            {"place": 100 * n / _TICKS, "label": label}
            for n, label in enumerate(of_one_unit([found.end * n / _TICKS for n in range(_TICKS + 1)]))
        ],
        models=tones,
        items=items,
        left_out=len(shown) - len(items),
        handovers=_handovers(found.spans),
        troubles=troubles[:MOST_TROUBLES],
        troubles_left_out=max(0, len(troubles) - MOST_TROUBLES),
        style=resource("page.css") + resource("timeline.css"),
    )


def _item(name: str, manifest: Mapping[str, Any], found: Spans, tones: Mapping[str, str]) -> _Item:
    rows = {node: _Row(node) for node in manifest.get("nodes", ())}
    mine = [span for span in found.spans if span.unit.item == name]
    for span in mine:
        node = address(span.unit.node)
        row = rows.setdefault(node, _Row(node))
        length = span.end - span.start
        bar = _Bar(
            left=_share(span.start, found.end),
            width=_share(length, found.end),
            track=row.track(span),
            tone=tones.get(node, "m0"),
            how="again" if span.how == "tried again" else span.how,
            title=_title(span),
            handover=min(100.0, _share(span.handover, length)),
        )
        row.bars.append(bar)
    for handover in _handovers(mine):
        row = rows[handover.receiver]
        told = f"{handover.channel} ← {handover.sender}, {amount(handover.bytes)}"
        row.received = f"{row.received}; {told}" if row.received else told
    return _Item(name, [row for row in rows.values() if row.bars])


def _share(part: float, whole: float) -> float:
    return round(100 * part / whole, 3) if whole else 0.0


def _title(span: Span) -> str:
    parts = [f"{span.unit}: {span.how}", f"{seconds(span.start)} to {seconds(span.end)}"]
    if span.how == "done":
        told = span.figures
        parts.append(f"{told.get('prefilled', 0):,} prefilled, {told.get('generated', 0):,} generated")
    parts += [f"{m['channel']} from {m['sender']}: {amount(m['bytes'])}" for m in span.messages]
    return " · ".join([*parts, short(span.said, 300)] if span.said else parts)


def _handovers(spans: Iterable[Span]) -> list[_Handover]:
    """What was received, summed up over the messages of an edge."""
    found: dict[tuple[str, str, str], _Handover] = {}
    for span in spans:
        for message in span.messages:
            key = (address(message["sender"]), address(span.unit.node), message["channel"])
            sums = found.setdefault(key, _Handover(*key))
            sums.messages += 1
            sums.bytes += message["bytes"]
            sums.tokens += message["tokens"]
            sums.kept += message["kept"]
            sums.encode += message["encode_seconds"]
            sums.inject += message["inject_seconds"]
    return list(found.values())


@cache
def _template() -> Template:
    return page(
        "timeline.html.jinja",
        {
            "amount": amount,
            "number": number,
            "seconds": seconds,
            "short": lambda text: short(text, 600),
            "visible": visible,
        },
    )
