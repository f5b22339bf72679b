"""A comparison as one HTML file that opens anywhere: style, script and plots are inside, nothing is fetched."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from jinja2 import Template
from markupsafe import Markup

from agentflow.evaluation.report.columns import columns, heading
from agentflow.evaluation.report.format import NONE, amount, fact, interval, number, probability, seconds, visible
from agentflow.evaluation.report.pages import page, resource
from agentflow.evaluation.report.plots import plots
from agentflow.evaluation.report.words import findings
from agentflow.evaluation.rows import Comparison, Row
from agentflow.evaluation.statistics import Interval
from agentflow.evaluation.summary import Summary
from agentflow.evaluation.verdicts import Verdict

MOST_ITEMS = 500
"""Items whose answers stand in the page; the JSON report has all."""
_TONES: dict[Verdict, str] = {"shown": "shown", "shown by NLL": "shown", "reversed": "against"}


@dataclass(frozen=True)
class _Item:
    id: str
    group: str
    brief: str
    rows: tuple[Row, ...]


def html_report(summary: Summary, comparison: Comparison) -> str:
    """The page. Every foreign text is escaped; a content policy lets no script run but ours, and nothing load."""
    script = resource("page.js")
    items = _items(summary, comparison)
    return _template().render(
        heading=heading(summary),
        summary=summary,
        comparison=comparison,
        columns=columns(summary),
        findings=findings(summary),
        plots=plots(summary),
        items=items,
        left_out=len(comparison.items) - len(items),
        style=resource("page.css"),
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


@cache
def _template() -> Template:
    return page(
        "page.html.jinja",
        {
            "amount": amount,
            "bare": _bare,
            "change": _change,
            "fact": fact,
            "interval": interval,
            "nats": _nats,
            "number": number,
            "probability": probability,
            "seconds": seconds,
            "soft": _soft,
            "tone": _tone,
            "visible": visible,
        },
    )


def _bare(value: float | None) -> str:
    """For sorting."""
    return "" if value is None else repr(float(value))


def _change(value: Interval) -> str:
    return interval(value, sign=True)


def _nats(value: float | None) -> str:
    return number(value, ".3f") if value is not None and math.isfinite(value) else NONE


def _soft(name: str) -> Markup:
    """A name that may be broken before its settings and between them."""
    return Markup("<wbr>").join(part for part in re.split(r"(?=[\[(])|(?<=,)", visible(name)) if part)


def _tone(verdict: Verdict) -> str:
    return _TONES.get(verdict, "open")


def _items(summary: Summary, comparison: Comparison) -> list[_Item]:
    kept = dict.fromkeys(comparison.items[:MOST_ITEMS])
    rows: dict[str, list[Row]] = {item: [] for item in kept}
    for arm in comparison.arms:
        for row in comparison.of(arm.name):
            if row.item in kept:
                rows[row.item].append(row)
    channels = {a.name for a in summary.channels}
    return [
        _Item(
            item, found[0].group if found else "", _brief([r for r in found if r.arm in channels], summary), (*found,)
        )
        for item, found in rows.items()
    ]


def _brief(rows: list[Row], summary: Summary) -> str:
    told = (f"{visible(r.arm)} {'failed' if r.error else format(r.scores[summary.primary], '.2f')}" for r in rows)
    return " · ".join(told) or "not run"
