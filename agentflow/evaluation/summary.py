"""From a comparison's rows to the figures that a report shows.

An arm's own means are over the items that it finished. Paired figures are over the items that every arm
finished, so that all of them speak about the same items; how many were left out, and why, is part of the summary.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from agentflow.errors import UserError, did_you_mean
from agentflow.evaluation.pairing import Paired, Pairs, adjusted, common_items, finite
from agentflow.evaluation.rows import NO_SUCH_CONTROL, Arm, ArmKind, Comparison, Row
from agentflow.evaluation.statistics import RESAMPLES, UNIT, Interval, Spread, mean_interval, spread
from agentflow.evaluation.verdicts import Check, checks

COSTS = (
    "prefilled",
    "reused",
    "generated",
    "positions",
    "bytes",
    "encode_seconds",
    "inject_seconds",
    "first_token_seconds",
    "seconds",
)


@dataclass(frozen=True)
class ArmSummary:
    """One arm over the items that it finished.

    Attributes:
        finished, failed, unrun: counts of items; `unrun` ones have no row.
        scores: every metric's mean with its 95 % interval; empty where nothing was finished.
        nll, kl: nats per token, over the items that have them.
        costs: mean, p50 and p95 of every field in `COSTS`.
        peak_bytes: the most memory that any item took; None where it can't be told.
        groups: the same means as `scores`, for each group of items; empty without groups.
        steps: commands of an episode, lost ones included, with the 95 % interval; None where there are no episodes.
        group_steps: the same for each group of items.
    """

    name: str
    kind: ArmKind
    channel: str
    control: str
    settings: dict[str, Any]
    finished: int
    failed: int
    unrun: int
    scores: dict[str, Interval]
    nll: Interval | None
    kl: Interval | None
    costs: dict[str, Spread]
    peak_bytes: int | None
    groups: dict[str, dict[str, Interval]]
    steps: Interval | None = None
    group_steps: dict[str, Interval] = field(default_factory=dict)

    def cost(self, name: str) -> Spread | None:
        """One cost; None where nothing was finished."""
        return self.costs.get(name)


@dataclass(frozen=True)
class Summary:
    """What a comparison found.

    Attributes:
        items: how many were asked for; `common` of them were finished by every arm and are paired.
        against: every other arm − the reference. Channels are one family for Holm's correction, controls another.
        pairs: the pairs of channels that the reference is not part of; a family of their own.
        checks: controls against the channels they are about; a family of their own.
        smallest: the smallest difference of the primary metric that this run could see with 80 % power in every
            one of `against` between channels (between all arms when there is one channel); None if untold.
        errored: the policy for failed items and what it did here, as one sentence.
        notes: what else a reader should know.
    """

    workflow: str
    task: str
    metrics: tuple[str, ...]
    primary: str
    reference: str
    seed: int
    resamples: int
    items: int
    common: int
    arms: tuple[ArmSummary, ...]
    against: tuple[Paired, ...]
    pairs: tuple[Paired, ...]
    checks: tuple[Check, ...]
    smallest: float | None
    errored: str
    notes: tuple[str, ...]

    @property
    def channels(self) -> list[ArmSummary]:
        """Arms that compete."""
        return [a for a in self.arms if a.kind == "channel"]

    @property
    def controls(self) -> list[ArmSummary]:
        """Arms that only prove something."""
        return [a for a in self.arms if a.kind == "control"]

    @property
    def groups(self) -> list[str]:
        """Names of the items' groups, in their order; empty without groups."""
        return list(dict.fromkeys(g for a in self.arms for g in a.groups))

    def arm(self, name: str) -> ArmSummary:
        """One arm."""
        return next(a for a in self.arms if a.name == name)

    def versus(self, name: str) -> Paired | None:
        """An arm − the reference; None for the reference itself."""
        return next((p for p in self.against if p.arm == name), None)

    def to_json(self) -> dict[str, Any]:
        """A plain mapping; what can't be told is None."""
        data = asdict(self)
        for arm in data["arms"]:
            arm["costs"] = {name: cost._asdict() for name, cost in arm["costs"].items()}
        return data


def summarize(comparison: Comparison) -> Summary:
    """Compute every figure of a comparison; same comparison, same figures.

    Raises:
        UserError: the rows do not fit the comparison's arms, items and metrics.
    """
    _check(comparison)
    common = common_items(comparison)
    pairs = Pairs(comparison, common)
    reference = comparison.reference
    channels = [a.name for a in comparison.arms if a.kind == "channel"]
    controls = [a.name for a in comparison.arms if a.kind == "control"]
    rivals = adjusted([pairs.of(name, reference) for name in channels if name != reference])
    beside = adjusted([pairs.of(name, reference) for name in controls if name != reference])
    others = adjusted([pairs.of(b, a) for a, b in combinations(channels, 2) if reference not in (a, b)])
    seen = [p.score.detectable for p in rivals or beside if p.score and p.score.detectable is not None]
    return Summary(
        workflow=comparison.workflow,
        task=comparison.task,
        metrics=comparison.metrics,
        primary=comparison.primary,
        reference=reference,
        seed=comparison.seed,
        resamples=RESAMPLES,
        items=len(comparison.items),
        common=len(common),
        arms=tuple(_arm(arm, comparison) for arm in comparison.arms),
        against=rivals + beside,
        pairs=others,
        checks=checks(comparison, pairs),
        smallest=max(seen) if seen else None,
        errored=_errored(comparison, common),
        notes=_notes(comparison),
    )


def _check(comparison: Comparison) -> None:
    names = [a.name for a in comparison.arms]
    for name in (comparison.reference, *(r.arm for r in comparison.rows)):
        if name not in names:
            raise UserError(f"The comparison has no arm '{name}'.", fix=did_you_mean(name, names))
    items = set(comparison.items)
    for (item, arm), times in Counter((r.item, r.arm) for r in comparison.rows).items():
        if item not in items:
            raise UserError(f"The comparison has no item '{item}', but a row of it over '{arm}'.")
        if times > 1:
            raise UserError(f"There are {times} rows of item '{item}' over '{arm}', not one.")
    for row in comparison.rows:
        wrong = [m for m in comparison.metrics if not row.error and not finite(row.scores.get(m))]
        if wrong:
            raise UserError(f"The row of item '{row.item}' over '{row.arm}' has no score '{wrong[0]}'.")


def _arm(arm: Arm, comparison: Comparison) -> ArmSummary:
    rows = comparison.of(arm.name)
    done = [r for r in rows if not r.error]
    groups = dict.fromkeys(r.group for r in done)
    seed, metrics = comparison.seed, comparison.metrics
    peak = max((r.peak_bytes for r in done), default=0)
    return ArmSummary(
        name=arm.name,
        kind=arm.kind,
        channel=arm.channel,
        control=arm.control,
        settings=arm.settings,
        finished=len(done),
        failed=sum(1 for r in rows if r.error and not r.impossible),
        unrun=len(comparison.items) - len(rows),
        scores=_means(done, metrics, seed),
        nll=_nats([r.nll for r in done], seed),
        kl=_nats([r.kl for r in done], seed),
        costs={name: spread([float(getattr(r, name)) for r in done]) for name in COSTS} if done else {},
        peak_bytes=peak or None,
        groups={g: _means([r for r in done if r.group == g], metrics, seed) for g in groups} if any(groups) else {},
        steps=_steps(done, seed),
        group_steps={g: found for g in groups if g and (found := _steps([r for r in done if r.group == g], seed))},
    )


def _steps(rows: list[Row], seed: int) -> Interval | None:
    found = [float(r.steps) for r in rows if r.steps is not None]
    return mean_interval(found, seed=seed) if found else None


def _means(rows: list[Row], metrics: tuple[str, ...], seed: int) -> dict[str, Interval]:
    return {m: mean_interval([r.scores[m] for r in rows], seed=seed, bounds=UNIT) for m in metrics} if rows else {}


def _nats(values: list[float | None], seed: int) -> Interval | None:
    found = [v for v in values if v is not None and math.isfinite(v)]
    return mean_interval(found, seed=seed) if found else None


def _errored(comparison: Comparison, common: tuple[str, ...]) -> str:
    """The policy in words, with this run's counts."""
    failed = {a.name: sum(1 for r in comparison.of(a.name) if r.error and not r.impossible) for a in comparison.arms}
    which = ", ".join(f"{name} {count}" for name, count in failed.items() if count)
    items = len({r.item for r in comparison.rows if r.error and not r.impossible})
    over = f"paired figures are over the {len(common)} of {len(comparison.items)} items that every arm finished"
    if not items:
        return f"errored items: none; {over}."
    return f"errored items: {items} failed in at least one arm ({which}) and are left out of pairs; {over}."


def _notes(comparison: Comparison) -> tuple[str, ...]:
    notes = []
    total = len(comparison.items)
    for arm in comparison.arms:
        rows = comparison.of(arm.name)
        done = [r for r in rows if not r.error]
        if not done and rows and all(r.impossible for r in rows):
            notes.append(f"{arm.name} can't be made: {rows[0].error.removeprefix(NO_SUCH_CONTROL).lstrip(': ')}")
        elif not done:
            notes.append(f"{arm.name} finished no item and takes no part in any pair.")
        elif len(rows) < total:
            notes.append(f"{arm.name} was run on {len(rows)} of {total} items: the comparison was stopped.")
        for figure, values in (("NLL", [r.nll for r in done]), ("KL", [r.kl for r in done])):
            lost = sum(1 for v in values if v is not None and not math.isfinite(v))
            if lost:
                notes.append(
                    f"{arm.name} has no finite {figure} on {lost} of {len(done)} items; they are left out of it."
                )
    return tuple(notes)
