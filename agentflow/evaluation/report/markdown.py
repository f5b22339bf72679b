"""A comparison as Markdown that reads well in a repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentflow.evaluation.pairing import Paired
from agentflow.evaluation.report.columns import columns, heading
from agentflow.evaluation.report.format import NONE, fact, interval, number, probability, visible
from agentflow.evaluation.report.words import findings
from agentflow.evaluation.rows import Comparison
from agentflow.evaluation.summary import ArmSummary, Summary

_SPECIAL = re.compile(r"[\\`*{}<>#|~$&!]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|\[(?=\^)")
_HEAD = (
    "steps",
    "change",
    "p",
    "wins",
    "nll",
    "kl",
    "prefilled",
    "bytes",
    "first_token_seconds",
    "seconds",
    "failed",
    "n",
)


def markdown_report(summary: Summary, comparison: Comparison) -> str:
    """The document: findings in words, channels, controls, pairs, groups, and how to repeat it."""
    parts = [f"# {plain(heading(summary))}", "\n".join(f"- {plain(line)}" for line in findings(summary))]
    parts += ["## Channels", _arms(summary, summary.channels)]
    if summary.controls:
        parts += ["## Controls", _checks(summary), _arms(summary, summary.controls)]
    if summary.pairs:
        parts += ["## Channels against each other", _pairs(summary.pairs, summary.primary)]
    if summary.groups:
        parts += [f"## {plain(summary.primary)} by group", _groups(summary)]
    if any(arm.group_steps for arm in summary.arms):
        parts += ["## Steps by group", _group_steps(summary)]
    if comparison.published:
        parts += ["## Published figures", _published(comparison)]
    return "\n\n".join([*parts, "## How to repeat it", _origin(summary, comparison)]) + "\n"


def plain(text: object) -> str:
    """Foreign text that Markdown leaves as it is."""
    return _SPECIAL.sub(r"\\\g<0>", visible(text))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> str:
    """A table, columns padded so that the source reads as well; the first `texts` columns are left-aligned."""
    cells = [[plain(c) for c in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[at]) for row in cells)) for at in range(len(head))]
    rule = ["-" * w if at < texts else "-" * (w - 1) + ":" for at, w in enumerate(widths)]
    lines = [
        [c.ljust(w) if at < texts else c.rjust(w) for at, (c, w) in enumerate(zip(row, widths, strict=True))]
        for row in cells
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def _arms(summary: Summary, arms: Sequence[ArmSummary]) -> str:
    shown = [c for c in columns(summary) if c.key.startswith("score:") or c.key in _HEAD]
    return table(["arm", *(c.title for c in shown)], [[a.name, *(c.cell(a) for c in shown)] for a in arms])


def _checks(summary: Summary) -> str:
    if not summary.checks:
        return "None of the controls is about a channel of this run."
    rows = [[c.control, c.channel, c.verdict, c.words, probability(c.p)] for c in summary.checks]
    return table(["control", "channel", "verdict", "in words", "p (Holm)"], rows, texts=4)


def _pairs(pairs: Sequence[Paired], metric: str) -> str:
    rows = []
    for pair in pairs:
        score, nll = pair.score, pair.nll
        rows.append(
            [
                f"{pair.arm} − {pair.other}",
                interval(score.change, sign=True) if score else NONE,
                probability(score.p_holm) if score else NONE,
                f"{score.win}/{score.tie}/{score.loss}" if score else NONE,
                interval(nll.change, sign=True) if nll else NONE,
                probability(nll.p_holm) if nll else NONE,
            ]
        )
    return table(["pair", f"Δ {metric} [95 %]", "p (Holm)", "win/tie/loss", "Δ NLL [95 %]", "p (Holm)"], rows)


def _groups(summary: Summary) -> str:
    rows = []
    for arm in summary.arms:
        found = [arm.groups.get(g, {}).get(summary.primary) for g in summary.groups]
        rows.append([arm.name, *(f"{interval(i)} (n = {i.n})" if i else NONE for i in found)])
    return table(["arm", *(g or "(no group)" for g in summary.groups)], rows)


def _group_steps(summary: Summary) -> str:
    rows = []
    for arm in summary.arms:
        found = [arm.group_steps.get(g) for g in summary.groups]
        rows.append([arm.name, *(number(i.mean, ".1f") if i else NONE for i in found)])
    return table(["arm", *summary.groups], rows)


def _published(comparison: Comparison) -> str:
    return "\n".join(
        f"- {plain(p.get('name', ''))}: {plain(p.get('figure', ''))} ({plain(p.get('source', ''))})"
        for p in comparison.published
    )


def _origin(summary: Summary, comparison: Comparison) -> str:
    facts: dict[str, Any] = {
        "n": f"{summary.items} items, {summary.common} in pairs",
        "seed": summary.seed,
        "task settings": comparison.task_settings or NONE,
        **comparison.machine,
    }
    lines = [f"- {plain(name)}: {plain(fact(value))}" for name, value in facts.items()]
    command = f"```\n{visible(comparison.command).replace('```', '` ` `')}\n```\n\n" if comparison.command else ""
    intervals = f"Intervals: 95 %, BCa bootstrap over items, {summary.resamples:,} resamples."
    return command + "\n".join(lines) + f"\n\n{intervals}"
