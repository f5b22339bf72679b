"""Comparisons as a run would leave them, made up from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentflow.evaluation.rows import Arm, Comparison, Row

BRIEFING = "latent_briefing"

# name, kind, channel, settings, control, skill, prefilled, positions, bytes, encode, inject, first token
_ARMS = [
    ("text", "channel", "text", {}, "", 0.62, 905, 905, 3_900, 0.0, 0.0, 0.82),
    ("cache", "channel", "cache", {}, "", 0.62, 24, 905, 21_500_000, 0.004, 0.011, 0.11),
    (f"{BRIEFING}[t=0]", "channel", BRIEFING, {"t": 0}, "", 0.60, 24, 480, 11_400_000, 0.31, 0.009, 0.40),
    (f"{BRIEFING}[t=1]", "channel", BRIEFING, {"t": 1}, "", 0.52, 24, 270, 6_300_000, 0.29, 0.007, 0.37),
    (f"{BRIEFING}[t=2]", "channel", BRIEFING, {"t": 2}, "", 0.36, 24, 120, 2_700_000, 0.28, 0.005, 0.35),
    ("no message", "control", "", {}, "no message", 0.11, 24, 24, 0, 0.0, 0.0, 0.06),
    ("sender alone", "control", "", {}, "sender alone", 0.60, 24, 905, 0, 0.0, 0.0, 0.12),
    ("mismatched(cache)", "control", "cache", {}, "mismatched", 0.08, 24, 905, 21_500_000, 0.004, 0.011, 0.11),
    ("zero(cache)", "control", "cache", {}, "zero", 0.05, 24, 905, 21_500_000, 0.004, 0.011, 0.11),
]  # fmt: skip


def comparison(items: int = 40, *, seed: int = 0, errors: bool = True) -> Comparison:
    """Three channels, one of them at three kept shares, and four controls; two groups; some items fail."""
    rng = np.random.default_rng(seed)
    ids = tuple(f"5a8b57f25542995d1e6f{n:04x}" for n in range(items))
    ease = rng.normal(0, 0.22, items)
    rows: list[Row] = []
    arms: list[Arm] = []
    for name, kind, channel, settings, control, skill, prefilled, positions, size, encode, inject, first in _ARMS:
        arms.append(Arm(name, kind, channel, settings, control))  # type: ignore[arg-type]
        noise = np.random.default_rng([seed, len(arms)]).normal(0, 0.12, items)
        if name == "cache":  # the same answers as text: nothing is lost
            noise = np.random.default_rng([seed, 1]).normal(0, 0.12, items)
        for n, item in enumerate(ids):
            f1 = float(np.clip(skill + ease[n] + noise[n], 0, 1).round(3))
            slow = float(rng.lognormal(0, 0.12))
            rows.append(
                Row(
                    item,
                    name,
                    group="bridge" if n % 3 else "comparison",
                    scores={"em": float(f1 > 0.7), "f1": f1},
                    answers=(f"the {('Battle of Hastings', 'River Seine', 'year 1987')[n % 3]}",),
                    nll=float(2.6 - 2.2 * f1 + abs(noise[n])),
                    kl=None if name == "text" else float(max(0.0, 0.62 - skill) + 0.001),
                    prefilled=prefilled + n % 7,
                    reused=positions - 24 if positions > 24 and prefilled < 100 else 0,
                    generated=4 + n % 5,
                    positions=positions,
                    bytes=size,
                    encode_seconds=encode * slow,
                    inject_seconds=inject * slow,
                    first_token_seconds=first * slow,
                    seconds=(first + 0.22) * slow,
                    peak_bytes=1_400_000_000 + size,
                )
            )
    made = Comparison(
        workflow="hotpotqa",
        task="hotpotqa",
        task_settings={"setting": "split"},
        metrics=("em", "f1"),
        primary="f1",
        reference="text",
        arms=tuple(arms),
        items=ids,
        rows=tuple(rows),
        seed=seed,
        machine={"processor": "a processor", "threads": 2, "models": {"tiny": {"weights": "3f2a", "dtype": "float32"}}},
        command="agentflow compare hotpotqa --data dev.jsonl.gz -n 40 --channels text,cache --controls all",
        published=({"name": "F1, full setting", "figure": "59.0", "source": "HotpotQA, arXiv 1809.09600"},),
    )
    if not errors:
        return made
    failing = {(ids[0], f"{BRIEFING}[t=2]"): "answer: out of memory", (ids[-1], "zero(cache)"): "answer: timed out"}
    return with_errors(made, failing)


def with_errors(made: Comparison, failing: dict[tuple[str, str], str]) -> Comparison:
    """The comparison, with these (item, arm) failed."""
    rows = [
        Row(r.item, r.arm, r.group, error=failing[r.item, r.arm]) if (r.item, r.arm) in failing else r
        for r in made.rows
    ]
    return replace(made, rows=tuple(rows))


def only(made: Comparison, arms: Sequence[str]) -> Comparison:
    """The comparison with these arms alone."""
    return replace(
        made,
        arms=tuple(a for a in made.arms if a.name in arms),
        rows=tuple(r for r in made.rows if r.arm in arms),
    )


def bare(made: Comparison) -> Comparison:
    """The comparison of a task without groups, run without probing the right answers."""
    return replace(made, rows=tuple(replace(r, nll=None, kl=None, group="") for r in made.rows))


def hostile(made: Comparison) -> Comparison:
    """The comparison with names, answers and errors that try to break out of a report."""
    bad = "<script>alert(1)</script>[red]$x_1$ | `a` \x1b[2J"
    names = {a.name: f"{bad}{a.name}" for a in made.arms}
    return replace(
        made,
        workflow=bad,
        reference=names[made.reference],
        arms=tuple(replace(a, name=names[a.name]) for a in made.arms),
        rows=tuple(replace(r, arm=names[r.arm], answers=(bad, "</td>\n![x](http://x.y/z)")) for r in made.rows),
        command=f"agentflow compare {bad} ``` {bad}",
        machine={bad: bad},
        published=({"name": bad, "figure": bad, "source": bad},),
    )
