"""The table and the picture of `benchmarks.briefing_table`, from its rows.

    python -m benchmarks.briefing_report FOLDER [--picture FILE.png]

Every figure is a mean over items with its 95 % bootstrap interval; "against ours" is the paired difference of NLL to
latent briefing at the same share (below zero: the rival is better).
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

from agentflow.evaluation.rows import Row
from agentflow.evaluation.statistics import mean_interval, paired_difference

OURS = "latent_briefing"
KINDS = (
    OURS,
    f"{OURS}, no refit",
    "gaps kept, β too",
    "published scoring",
    "blind to the task",
    "random positions",
    "retrieval",
)
Rows = dict[str, dict[str, Row]]


def main() -> None:
    """Print the table; draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--peer", type=Path, help="what kvpress_peer measured on the same items")
    chosen = parser.parse_args()
    rows = read(chosen.folder, chosen.peer)
    primary = "exact" if "exact" in next(iter(rows["cache"].values())).scores else "f1"
    print("\n".join(table(rows, primary)))
    if chosen.picture is not None:
        draw(rows, primary, chosen.picture)


def read(folder: Path, peer: Path | None = None) -> Rows:
    """Rows by arm and item; items that every arm has."""
    found: Rows = defaultdict(dict)
    for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines():
        row = Row.from_json(json.loads(line))
        found[row.arm][row.item] = row
    for row in peer_rows(peer) if peer else []:
        found[row.arm][row.item] = row
    common = set.intersection(*(set(of) for of in found.values()))
    return {arm: {item: of[item] for item in sorted(common)} for arm, of in found.items()}


def peer_rows(file: Path) -> list[Row]:
    """The lines of `kvpress_peer`, as rows without scores: it scores likelihoods only."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if found["press"] != "full":
            arm, item = f"kvpress {found['press']} {found['share']}", found["id"].rpartition("-")[0]
            rows.append(Row(item, arm, nll=found["nll"], kl=found["kl"], kept=found["kept_context"]))
    return rows


def nll(rows: Rows, arm: str) -> list[float]:
    """The arm's, over the items in their order."""
    return [row.nll if row.nll is not None else float("nan") for row in rows[arm].values()]


def share(rows: Rows, arm: str) -> float:
    """Positions of the message that the receiver stood on or read, over those of the whole cache."""
    whole = sum(row.message_positions for row in rows["cache"].values())
    return sum(row.message_positions for row in rows[arm].values()) / whole


def table(rows: Rows, primary: str) -> list[str]:
    """Markdown."""
    items = len(rows["cache"])
    lines = [
        f"{items} items; {primary} {_mean([r.scores[primary] for r in rows['cache'].values()])}, NLL "
        f"{_mean(nll(rows, 'cache'))} with the whole cache.",
        "",
        f"| kept | way | NLL above full | KL | {primary} | NLL against ours |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for arm in sorted((a for a in rows if a != "cache"), key=lambda a: (-_asked(rows, a), _kind(a))):
        ours = f"{OURS} {_number(arm)}"
        against = "–"
        if ours in rows and ours != arm and _number(arm) is not None:
            against = paired_difference(nll(rows, arm), nll(rows, ours), seed=0).text(2, sign=True)
        above = paired_difference(nll(rows, arm), nll(rows, "cache"), seed=0).text(2, sign=True)
        kl = _mean([r.kl or 0.0 for r in rows[arm].values()])
        scores = [r.scores[primary] for r in rows[arm].values() if r.scores]
        score = _mean(scores) if scores else "–"
        lines.append(f"| {share(rows, arm):.0%} | {arm} | {above} | {kl} | {score} | {against} |")
    return lines


def draw(rows: Rows, primary: str, file: Path) -> None:
    """NLL above the whole cache and the score, over the kept share."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for kind in KINDS:
        arms = sorted((a for a in rows if _kind(a) == kind and _number(a)), key=lambda a: _asked(rows, a))
        if not arms:
            continue
        x = [100 * _asked(rows, a) for a in arms]
        style = {"marker": "o", "linewidth": 2.5 if kind == OURS else 1.2, "label": kind.replace("_", " ")}
        above = [paired_difference(nll(rows, a), nll(rows, "cache"), seed=0) for a in arms]
        bars = [[i.mean - (i.low or i.mean) for i in above], [(i.high or i.mean) - i.mean for i in above]]
        left.errorbar(x, [i.mean for i in above], yerr=bars, capsize=2, **style)
        right.plot(
            x, [mean_interval([r.scores[primary] for r in rows[a].values()], seed=0).mean for a in arms], **style
        )
    full = mean_interval([r.scores[primary] for r in rows["cache"].values()], seed=0).mean
    left.axhline(0, color="black", linewidth=0.8)
    right.axhline(full, color="black", linewidth=0.8, label="whole cache")
    left.set(xlabel="kept, % of the positions", ylabel="NLL above the whole cache, nats a token")
    right.set(xlabel="kept, % of the positions", ylabel=primary)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(file, dpi=120)


def _mean(values: list[float]) -> str:
    return mean_interval(values, seed=0).text(2)


def _number(arm: str) -> str | None:
    found = re.search(r" (0\.\d+)$", arm)
    return found.group(1) if found else None


def _asked(rows: Rows, arm: str) -> float:
    number = _number(arm)
    return float(number) if number else share(rows, arm)


def _kind(arm: str) -> str:
    return re.sub(r" (0\.\d+|t=.*)$", "", arm)


if __name__ == "__main__":
    main()
