"""The figures of an arm as columns: one list that every report chooses from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentflow.evaluation.pairing import Difference
from agentflow.evaluation.report.format import (
    NONE,
    amount,
    count,
    interval,
    number,
    probability,
    two_seconds,
    visible,
)
from agentflow.evaluation.summary import ArmSummary, Summary

Figure = Callable[[ArmSummary], float | None]
Cell = Callable[[ArmSummary], str]


@dataclass(frozen=True)
class Column:
    """One figure of every arm.

    Attributes:
        key: a name that stays, for tests and sorting.
        title: for a table's head.
        meaning: a sentence for those who ask.
        about: what an arm scored, or what it cost.
        rank: columns of a low rank are kept longest where there is little room.
        value: the bare figure, to sort by; None where there is none.
        cell: the figure for people.
    """

    key: str
    title: str
    meaning: str
    about: Literal["score", "cost"]
    rank: int
    value: Figure
    cell: Cell


def columns(summary: Summary, *, edges: int = 3) -> list[Column]:
    """Every column that has something to say about this comparison, in the order in which they are read.

    `edges` are the decimals of an interval's bounds.
    """
    made = [*_scores(summary, edges), *_steps(), *_paired(summary, edges), *_nats(summary, edges), *_costs()]
    made += [
        _count("failed", "Items that failed.", 5, lambda a: a.failed),
        _count("n", "Items that the arm finished.", 14, lambda a: a.finished),
    ]
    return [c for c in made if _says_something(c, summary)]


def heading(summary: Summary) -> str:
    """What was compared: "hotpotqa on hotpotqa: 40 items, seed 0"."""
    items = count(summary.items, "item")
    return visible(f"{summary.workflow} on {summary.task}: {items}, seed {summary.seed}")


def _says_something(column: Column, summary: Summary) -> bool:
    values = [column.value(a) for a in summary.arms]
    if column.key in ("failed", "reused", "kl"):
        return any(values)
    return any(v is not None for v in values)


def _count(key: str, meaning: str, rank: int, count_of: Callable[[ArmSummary], int]) -> Column:
    return Column(key, key, meaning, "score", rank, lambda a: float(count_of(a)), lambda a: str(count_of(a)))


def _scores(summary: Summary, edges: int) -> list[Column]:
    made = []
    for metric in (summary.primary, *(m for m in summary.metrics if m != summary.primary)):
        first = metric == summary.primary
        name = visible(metric)
        made.append(
            Column(
                f"score:{metric}",
                f"{name} [95 %]" if first else name,
                f"Mean {name} over the items that the arm finished"
                + (", with its 95 % bootstrap interval." if first else "."),
                "score",
                0 if first else 6,
                lambda a, m=metric: a.scores[m].mean if m in a.scores else None,  # type: ignore[misc]
                lambda a, m=metric, d=first: _score(a, m, edges if d else None),  # type: ignore[misc]
            )
        )
    return made


def _score(arm: ArmSummary, metric: str, edges: int | None) -> str:
    found = arm.scores.get(metric)
    if found is None:
        return NONE
    return number(found.mean, ".3f") if edges is None else interval(found, edges)


def _steps() -> list[Column]:
    return [
        Column(
            "steps",
            "steps",
            "Commands of an episode, those that were lost included; mean.",
            "score",
            6,
            lambda a: a.steps.mean if a.steps else None,
            lambda a: number(a.steps.mean, ".1f") if a.steps else NONE,
        )
    ]


def _paired(summary: Summary, edges: int) -> list[Column]:
    name, reference = visible(summary.primary), visible(summary.reference)

    def score(arm: ArmSummary) -> Difference | None:
        paired = summary.versus(arm.name)
        return paired.score if paired else None

    def change(arm: ArmSummary) -> str:
        found = score(arm)
        return interval(found.change, edges, sign=True) if found else NONE

    def counts(arm: ArmSummary) -> str:
        found = score(arm)
        return f"{found.win}/{found.tie}/{found.loss}" if found else NONE

    return [
        Column(
            "change",
            f"Δ {name} [95 %]",
            f"Paired difference of {name} to {reference}, over the items that every arm finished.",
            "score",
            1,
            lambda a: d.change.mean if (d := score(a)) else None,
            change,
        ),
        Column(
            "p",
            "p (Holm)",
            "Exact McNemar test for outcomes of 0 and 1, else paired permutation test; adjusted by Holm.",
            "score",
            6,
            lambda a: d.p_holm if (d := score(a)) else None,
            lambda a: probability(d.p_holm) if (d := score(a)) else NONE,
        ),
        Column(
            "wins",
            "win/tie/loss",
            f"Items on which the arm scores better than, as, and worse than {reference}.",
            "score",
            9,
            lambda a: float(d.win - d.loss) if (d := score(a)) else None,
            counts,
        ),
    ]


def _nats(summary: Summary, edges: int) -> list[Column]:
    def change(arm: ArmSummary) -> Difference | None:
        paired = summary.versus(arm.name)
        return paired.nll if paired else None

    return [
        Column(
            "nll",
            "NLL",
            "Mean negative log-likelihood of the right answer, nats per token; lower is better.",
            "score",
            7,
            lambda a: a.nll.mean if a.nll else None,
            lambda a: number(a.nll.mean, ".3f") if a.nll else NONE,
        ),
        Column(
            "nll_change",
            "Δ NLL [95 %]",
            f"Paired difference of NLL to {visible(summary.reference)}.",
            "score",
            12,
            lambda a: d.change.mean if (d := change(a)) else None,
            lambda a: interval(d.change, edges, sign=True) if (d := change(a)) else NONE,
        ),
        Column(
            "kl",
            "KL",
            "Mean KL divergence from the receiver that read the whole text, nats per token.",
            "score",
            8,
            lambda a: a.kl.mean if a.kl else None,
            lambda a: number(a.kl.mean, ".3f") if a.kl else NONE,
        ),
    ]


def _costs() -> list[Column]:
    return [
        _mean(
            "prefilled", "prefill", "Tokens computed for the receivers' prompts, and by channels on the way; mean.", 4
        ),
        _mean("reused", "reused", "Tokens that stood in a cache already; mean.", 13),
        _mean("generated", "generated", "Tokens that the receivers generated, and channels on the way; mean.", 16),
        _mean("positions", "positions", "Entries that the receivers could attend to; mean.", 11),
        _mean("bytes", "bytes", "Payloads as they would travel; mean.", 4, amount),
        _quantiles("encode_seconds", "encode p50/p95", "From trajectory to payload.", 17),
        _quantiles("inject_seconds", "inject p50/p95", "From payload to the receiver's cache.", 18),
        _quantiles("first_token_seconds", "first token p50/p95", "Hand-over and prefill, to the first token.", 3),
        _quantiles("seconds", "total p50/p95", "Hand-over to last token.", 10),
        Column(
            "peak",
            "peak memory",
            "The most memory held while an item ran.",
            "cost",
            15,
            lambda a: None if a.peak_bytes is None else float(a.peak_bytes),
            lambda a: amount(a.peak_bytes),
        ),
    ]


def _mean(key: str, title: str, meaning: str, rank: int, form: Callable[[float | None], str] = number) -> Column:
    def value(arm: ArmSummary) -> float | None:
        cost = arm.cost(key)
        return cost.mean if cost else None

    return Column(key, title, meaning, "cost", rank, value, lambda a: form(value(a)))


def _quantiles(key: str, title: str, meaning: str, rank: int) -> Column:
    def cell(arm: ArmSummary) -> str:
        cost = arm.cost(key)
        return two_seconds(cost.p50, cost.p95) if cost else NONE

    def value(arm: ArmSummary) -> float | None:
        cost = arm.cost(key)
        return cost.p50 if cost else None

    return Column(key, title, f"{meaning} Median and 95th percentile.", "cost", rank, value, cell)
