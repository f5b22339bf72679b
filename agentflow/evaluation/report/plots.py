"""Plots of a comparison as inline SVG: what a score costs, paired differences, kept share, where the seconds go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentflow.evaluation.report.columns import Column, columns
from agentflow.evaluation.report.format import amount, interval, number, seconds, short, visible
from agentflow.evaluation.report.svg import FAINT, INK, MARKERS, SERIES, canvas, inline
from agentflow.evaluation.statistics import Interval
from agentflow.evaluation.summary import ArmSummary, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 28
WIDTH = 6.0
_ROW = 0.3
"""Inches per row of a plot with one row for each arm."""


@dataclass(frozen=True)
class Plot:
    """A drawing: `key` is unique on a page, `alt` says in words what can be seen, `svg` is the element."""

    key: str
    title: str
    alt: str
    svg: str


def plots(summary: Summary) -> list[Plot]:
    """Every plot that this comparison has the data for."""
    every = {c.key: c for c in columns(summary)}
    made = [
        _against(summary, every, "first_token_seconds", "seconds to the first token (median)", seconds),
        _against(summary, every, "prefilled", "tokens prefilled (mean)", number),
        _against(summary, every, "bytes", "payload bytes (mean, logarithmic)", amount),
        forest(summary),
        kept_share(summary),
        time_bars(summary),
    ]
    return [plot for plot in made if plot is not None]


def _against(
    summary: Summary, every: dict[str, Column], key: str, label: str, form: Callable[[float | None], str]
) -> Plot | None:
    column, arms = every.get(key), [a for a in summary.arms if a.scores]
    if column is None or not arms:
        return None
    metric = visible(summary.primary)
    title = f"{metric} against {label}"
    points = [(a, a.scores[summary.primary], column.value(a) or 0.0) for a in arms]
    alt = "; ".join(f"{visible(a.name)}: {metric} {interval(y)} at {form(x)}" for a, y, x in points)
    with canvas(WIDTH, 3.3 + 0.16 * max(0, len(arms) - 12)) as figure:
        axes = figure.add_subplot()
        for arm, score, at in points:
            _point(axes, at, score, _look(summary, arm), short(arm.name, LONGEST_NAME))
        axes.set(xlabel=label, ylabel=f"{metric} with 95 % interval", ylim=_room([s for _, s, _ in points]))
        _scale(axes, [x for _, _, x in points], form, logarithmic=key == "bytes")
        figure.legend(loc="outside right upper", fontsize=9)
        return Plot(key, title, alt, inline(figure, key, title, alt))


def _point(axes: Axes, at: float, score: Interval, look: dict[str, Any], label: str) -> None:
    low, high = score.low, score.high
    reach = None if low is None or high is None else [[max(0.0, score.mean - low)], [max(0.0, high - score.mean)]]
    handle = axes.errorbar([at], [score.mean], yerr=reach, linestyle="none", elinewidth=1.2, capsize=2, **look)
    handle.set_label("\u200b" + label)  # matplotlib hides labels that begin with an underscore


def _look(summary: Summary, arm: ArmSummary) -> dict[str, Any]:
    """One colour for each channel, one shape for each arm; controls are hollow and grey."""
    if arm.kind == "control":
        names = [a.name for a in summary.controls]
        shape = MARKERS[names.index(arm.name) % len(MARKERS)]
        return {"color": INK, "marker": shape, "markerfacecolor": "none", "markersize": 6, "alpha": 0.6}
    kinds = list(dict.fromkeys(a.channel for a in summary.channels))
    names = [a.name for a in summary.channels]
    return {
        "color": SERIES[kinds.index(arm.channel) % len(SERIES)],
        "marker": MARKERS[names.index(arm.name) % len(MARKERS)],
        "markersize": 7,
    }


def _room(scores: list[Interval]) -> tuple[float, float]:
    low = min(s.mean if s.low is None else s.low for s in scores)
    high = max(s.mean if s.high is None else s.high for s in scores)
    edge = 0.06 * max(high - low, 0.05)
    return low - edge, high + edge


def _scale(axes: Axes, values: list[float], form: Callable[[float | None], str], *, logarithmic: bool) -> None:
    positive = [v for v in values if v > 0]
    if logarithmic and positive:
        if len(positive) == len(values):
            axes.set_xscale("log")
            axes.set_xlim(min(positive) / 2, max(positive) * 2)
        else:
            axes.set_xscale("symlog", linthresh=min(positive) / 3, linscale=0.4)
            axes.set_xlim(-min(positive) / 12, max(positive) * 2)
            axes.set_xticks([0.0, *_decades(min(positive), max(positive))])
    else:
        most = max(*values, 1e-9)
        axes.set_xlim(-0.03 * most, 1.06 * most)
    axes.xaxis.set_major_formatter(lambda x, _: form(x) if x >= 0 else "")
    axes.xaxis.set_minor_formatter(lambda _x, _: "")


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [10.0**power for power in powers[:: 1 + len(powers) // 5]]


def forest(summary: Summary) -> Plot | None:
    """Paired differences to the reference with their intervals, channels above controls."""
    rows = [(summary.arm(p.arm), p.score.change) for p in summary.against if p.score]
    if not rows:
        return None
    metric, reference = visible(summary.primary), visible(summary.reference)
    title = f"Paired difference of {metric} to {reference}, 95 % interval"
    alt = "; ".join(f"{visible(a.name)}: {interval(change, sign=True)}" for a, change in rows)
    with canvas(WIDTH, 0.9 + _ROW * len(rows)) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, linewidth=1)
        for at, (arm, change) in enumerate(rows):
            low, high = change.low, change.high
            look = _look(summary, arm)
            if low is not None and high is not None:
                axes.plot([low, high], [at, at], color=look["color"], linewidth=1.6, alpha=look.get("alpha", 1))
            axes.plot([change.mean], [at], linestyle="none", **look)
            axes.annotate(
                interval(change, sign=True),
                (1.01, at),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=9,
                annotation_clip=False,
            )
        _rows(axes, [a.name for a, _ in rows])
        axes.set_xlabel(f"← {short(reference, 20)} is better · Δ {metric} · the arm is better →")
        return Plot("forest", title, alt, inline(figure, "forest", title, alt))


def _rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), [short(n, LONGEST_NAME) for n in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def kept_share(summary: Summary) -> Plot | None:
    """Score and NLL against the share of positions kept, for channels that were run at several; None without any."""
    families = _families(summary)
    if not families:
        return None
    most = max(a.costs["positions"].mean for a in summary.channels if a.costs)
    metric = visible(summary.primary)
    title = f"{metric} and NLL against the share of positions kept"
    told = [(a, a.costs["positions"].mean / most) for arms in families.values() for a in arms]
    alt = "; ".join(
        f"{visible(a.name)}: {100 * x:.0f} % kept, {metric} {interval(a.scores[summary.primary])}, "
        f"NLL {interval(a.nll)}"
        for a, x in told
    )
    nats = any(a.nll for a, _ in told)
    with canvas(WIDTH, 3.1) as figure:
        panels = figure.subplots(1, 2 if nats else 1, squeeze=False)[0]
        for arms in families.values():
            xs = [a.costs["positions"].mean / most for a in arms]
            look = _look(summary, arms[0])
            name = short(arms[0].channel, LONGEST_NAME)
            _curve(panels[0], xs, [a.scores[summary.primary] for a in arms], look, name)
            if nats:
                _curve(panels[1], xs, [a.nll for a in arms], look, name)
        reference = summary.arm(summary.reference)
        for axes, level in zip(panels, (reference.scores.get(summary.primary), reference.nll), strict=False):
            if level:
                axes.axhline(level.mean, color=INK, linestyle="--", linewidth=1)
                axes.annotate(short(reference.name, 18), (0.02, level.mean), xycoords=("axes fraction", "data"),
                              xytext=(0, 3), textcoords="offset points", fontsize=9)  # fmt: skip
            axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f} %")
        for axes, label in zip(panels, (metric, "NLL (nats per token)"), strict=False):
            axes.set_ylabel(label)
        figure.supxlabel("positions kept, as a share of the most that a channel had", fontsize=10)
        panels[0].legend(fontsize=9, loc="lower right")
        return Plot("kept", title, alt, inline(figure, "kept", title, alt))


def _families(summary: Summary) -> dict[str, list[ArmSummary]]:
    """Arms of one channel with different settings whose mean positions differ, by channel, fewest positions first."""
    found: dict[str, list[ArmSummary]] = {}
    for arm in summary.channels:
        if arm.costs and arm.costs["positions"].mean > 0:
            found.setdefault(arm.channel, []).append(arm)
    ordered = {name: sorted(arms, key=lambda a: a.costs["positions"].mean) for name, arms in found.items()}
    return {n: a for n, a in ordered.items() if a[0].costs["positions"].mean < 0.99 * a[-1].costs["positions"].mean}


def _curve(axes: Axes, xs: list[float], ys: list[Interval | None], look: dict[str, Any], name: str) -> None:
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
    at, means = [x for x, _ in known], [y.mean for _, y in known]
    reach = [
        [y.mean - (y.mean if y.low is None else y.low) for _, y in known],
        [(y.mean if y.high is None else y.high) - y.mean for _, y in known],
    ]
    axes.errorbar(at, means, yerr=reach, linewidth=1.4, elinewidth=1.2, capsize=2, label="\u200b" + name, **look)


def time_bars(summary: Summary) -> Plot | None:
    """Where the seconds go, mean per item: encode, inject, prefill and first token, the rest."""
    arms = [a for a in summary.arms if a.costs]
    if not arms:
        return None
    title = "Where the seconds go (mean per item)"
    parts = {"encode": SERIES[1], "inject": SERIES[3], "prefill, first token": SERIES[0], "rest": FAINT}
    split = [_split(a) for a in arms]
    alt = "; ".join(
        f"{visible(a.name)}: " + ", ".join(f"{name} {seconds(s)}" for name, s in zip(parts, spent, strict=True))
        for a, spent in zip(arms, split, strict=True)
    )
    with canvas(WIDTH, 1.2 + _ROW * len(arms)) as figure:
        axes = figure.add_subplot()
        start = [0.0] * len(arms)
        for n, (name, colour) in enumerate(parts.items()):
            width = [spent[n] for spent in split]
            axes.barh(range(len(arms)), width, left=start, height=0.66, color=colour, label=name)
            start = [s + w for s, w in zip(start, width, strict=True)]
        for at, end in enumerate(start):
            axes.annotate(seconds(end), (end, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
        _rows(axes, [a.name for a in arms])
        axes.set_xlim(0, max(*start, 1e-9) * 1.12)
        axes.xaxis.set_major_formatter(lambda x, _: seconds(x))
        figure.legend(loc="outside lower center", ncols=4, fontsize=9)
        return Plot("seconds", title, alt, inline(figure, "seconds", title, alt))


def _split(arm: ArmSummary) -> tuple[float, float, float, float]:
    """Hand-over is summed over receivers, the first token is their mean: with several, the third part may be nought."""
    encode, inject, first, total = (
        arm.costs[name].mean for name in ("encode_seconds", "inject_seconds", "first_token_seconds", "seconds")
    )
    prefill = max(0.0, first - encode - inject)
    return encode, inject, prefill, max(0.0, total - encode - inject - prefill)
