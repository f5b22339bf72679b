from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from agentflow.errors import UserError
from agentflow.evaluation.pairing import common_items
from agentflow.evaluation.rows import Arm, Comparison, Row
from agentflow.evaluation.statistics import mean_interval, paired_difference, permutation_p
from agentflow.evaluation.summary import summarize
from agentflow.evaluation.verdicts import question_of, subjects
from tests.evaluation.samples import BRIEFING, bare, comparison, only, with_errors


def small(**scores: list[float | None]) -> Comparison:
    """Arms with these scores; names in capitals are controls about the first arm; None is a failed item."""
    ids = tuple(f"q{n}" for n in range(max(len(v) for v in scores.values())))
    first = next(iter(scores))
    arms = [Arm(n, "control", first, control=n.lower()) if n.isupper() else Arm(n, "channel", n) for n in scores]
    rows = [
        Row(ids[i], name, scores={} if s is None else {"em": s}, error="broken" if s is None else "")
        for name, values in scores.items()
        for i, s in enumerate(values)
    ]
    return Comparison("w", "t", {}, ("em",), "em", first, tuple(arms), ids, tuple(rows), seed=0)


def test_means_are_over_what_an_arm_finished_and_pairs_over_what_all_finished() -> None:
    made = comparison()
    found = summarize(made)
    assert (found.items, found.common) == (40, 38)
    arm = found.arm(f"{BRIEFING}[t=2]")
    assert (arm.finished, arm.failed, arm.unrun) == (39, 1, 0)
    own = [r.scores["f1"] for r in made.of(arm.name) if not r.error]
    assert arm.scores["f1"] == mean_interval(own, seed=0, bounds=(0, 1))
    common = set(common_items(made))
    ours = [r.scores["f1"] for r in made.of(arm.name) if r.item in common]
    theirs = [r.scores["f1"] for r in made.of("text") if r.item in common]
    score = found.versus(arm.name).score
    assert score.change == paired_difference(ours, theirs, seed=0, bounds=(0, 1))
    assert score.p == permutation_p(ours, theirs, seed=0)
    assert score.win + score.tie + score.loss == 38
    assert "errored items: 2 failed in at least one arm" in found.errored
    assert "38 of 40" in found.errored


def test_costs_have_mean_and_quantiles() -> None:
    made = comparison()
    found = summarize(made).arm("text")
    waits = [r.first_token_seconds for r in made.of("text")]
    cost = found.costs["first_token_seconds"]
    assert list(cost) == pytest.approx([np.mean(waits), *np.quantile(waits, (0.5, 0.95))])
    assert found.peak_bytes == max(r.peak_bytes for r in made.of("text"))


def test_zero_and_one_outcomes_are_tested_by_mcnemar() -> None:
    found = summarize(small(text=[0] * 8 + [1] * 4, cache=[1] * 8 + [1] * 4)).versus("cache").score
    assert found.test == "exact McNemar"
    assert found.p == pytest.approx(2 / 2**8)
    assert (found.win, found.tie, found.loss) == (8, 4, 0)


def test_p_values_are_adjusted_within_their_family() -> None:
    found = summarize(comparison(errors=False))
    channels = [p for p in found.against if found.arm(p.arm).kind == "channel"]
    assert len(channels) == 4
    assert len(found.pairs) == 6  # none of them with the reference
    assert len(found.checks) == 5 + 5 + 1 + 1
    for family in (channels, found.pairs, [c.paired for c in found.checks]):
        least = min(family, key=lambda p: p.score.p).score
        assert least.p_holm == pytest.approx(min(1, least.p * len(family)))
        assert all(p.score.p_holm >= p.score.p for p in family)


def test_controls_say_that_content_crossed_only_where_it_did() -> None:
    found = {(c.control, c.channel): c for c in summarize(comparison()).checks}
    crossed = found["mismatched(cache)", "cache"]
    assert crossed.verdict == "shown"
    assert crossed.words.startswith("content crossed: the right message beats the mismatched one by 0.48 [0.4")
    assert found["sender alone", "cache"].verdict == "not shown"
    assert found["sender alone", f"{BRIEFING}[t=2]"].verdict == "reversed"
    same = summarize(small(cache=[0.0, 1.0] * 15, MISMATCHED=[1.0, 0.0] * 15)).checks[0]
    assert same.verdict == "not shown"
    assert same.words.startswith("not shown that content crossed: 0.00 [")


def test_too_few_items_show_nothing_however_large_the_difference() -> None:
    check = summarize(small(cache=[1.0, 1.0, 1.0], MISMATCHED=[0.0, 0.0, 0.0])).checks[0]
    assert check.verdict == "not shown"
    close = summarize(small(cache=[1.0, 0.9, 0.8, 0.7], MISMATCHED=[0.0, 0.0, 0.1, 0.0])).checks[0]
    assert close.verdict == "not shown"
    assert "but p = 0.12 over 4 items" in close.words


def test_nll_can_show_what_scores_can_not() -> None:
    made = small(cache=[0.0] * 20, MISMATCHED=[0.0] * 20)
    rng = np.random.default_rng(0)
    rows = [replace(r, nll=(1.0 if r.arm == "cache" else 2.0) + rng.normal(0, 0.2)) for r in made.rows]
    check = summarize(replace(made, rows=tuple(rows))).checks[0]
    assert check.verdict == "shown by NLL"
    assert "by NLL alone: 1.0" in check.words


def test_differences_of_nll_in_the_last_digits_are_ties() -> None:
    made = small(text=[1.0] * 20, cache=[1.0] * 20)
    rows = [replace(r, nll=1.0 + (1e-5 if r.arm == "cache" else 0.0)) for r in made.rows]
    nll = summarize(replace(made, rows=tuple(rows))).versus("cache").nll
    assert (nll.win, nll.tie, nll.loss, nll.p) == (0, 20, 0, 1.0)


def test_a_control_is_about_the_arm_with_its_settings() -> None:
    arms = [Arm("c[t=1]", "channel", "c", {"t": 1}), Arm("c[t=2]", "channel", "c", {"t": 2}), Arm("d", "channel", "d")]
    assert subjects(Arm("zero(c[t=2])", "control", "c", {"t": 2}, "zero"), arms) == [arms[1]]
    assert subjects(Arm("mine", "control", "c", {"t": 1}, "zero"), arms) == [arms[0]]
    assert subjects(Arm("mine", "control", "c", {}, "zero"), arms) == arms[:2]
    assert subjects(Arm("no message", "control", control="no message"), arms) == arms
    assert subjects(Arm("zero(e)", "control", "e", {}, "zero"), arms) == []


@pytest.mark.parametrize(
    ("control", "claim"),
    [
        ("no message", "helps"),
        ("no_message", "helps"),
        ("sender alone", "the receiver adds"),
        ("zero", "values count"),
        ("equal bytes", "worth its bytes"),
        ("equal positions", "worth its positions"),
        ("equal seconds", "worth its seconds"),
        ("self", "the sender adds"),
        ("somebody's own", "better"),
    ],
)
def test_every_control_asks_its_own_question(control: str, claim: str) -> None:
    assert claim in question_of(Arm("x", "control", control=control)).claim


def test_groups_have_the_same_means() -> None:
    made = comparison()
    found = summarize(made)
    assert found.groups == ["comparison", "bridge"]
    bridge = [r.scores["f1"] for r in made.of("text") if r.group == "bridge"]
    assert found.arm("text").groups["bridge"]["f1"] == mean_interval(bridge, seed=0, bounds=(0, 1))
    assert summarize(bare(made)).groups == []


def test_the_smallest_visible_difference_is_the_worst_channels() -> None:
    found = summarize(comparison())
    seen = [p.score.detectable for p in found.against if found.arm(p.arm).kind == "channel"]
    assert seen[0] is None  # cache equals text on every item
    assert found.smallest == max(s for s in seen if s is not None)
    alone = summarize(only(comparison(), ["text", "no message"]))
    assert alone.smallest == alone.versus("no message").score.detectable


@pytest.mark.parametrize(
    ("error", "failed", "note"),
    [
        ("out of memory", 40, "zero(cache) finished no item and takes no part in any pair."),
        ("no such control here: two senders", 0, "zero(cache) can't be made: two senders"),
    ],
)
def test_an_arm_that_finished_nothing_does_not_take_the_others_down(error: str, failed: int, note: str) -> None:
    made = comparison(errors=False)
    broken = summarize(with_errors(made, {(item, "zero(cache)"): error for item in made.items}))
    assert broken.common == 40
    assert broken.versus("zero(cache)").score is None
    assert [c.verdict for c in broken.checks if c.control == "zero(cache)"] == ["no data"]
    assert broken.arm("zero(cache)").scores == {}
    assert broken.arm("zero(cache)").failed == failed
    assert broken.notes == (note,)
    assert broken.versus("cache").score.change.n == 40


def test_a_reference_that_finished_nothing_leaves_no_differences() -> None:
    made = comparison(errors=False)
    found = summarize(with_errors(made, {(item, "text"): "out of memory" for item in made.items}))
    assert all(p.score is None for p in found.against)
    assert found.smallest is None
    assert found.pairs[0].score is not None


def test_a_stopped_comparison_says_so() -> None:
    made = comparison(errors=False)
    kept = tuple(r for r in made.rows if r.item in made.items[:7])
    found = summarize(replace(made, rows=kept))
    assert (found.common, found.arm("text").unrun) == (7, 33)
    assert "text was run on 7 of 40 items" in found.notes[0]
    empty = summarize(replace(made, rows=()))
    assert empty.common == 0
    assert empty.checks[0].verdict == "no data"


@pytest.mark.parametrize("items", [1, 2])
def test_one_or_two_items_are_enough_to_be_summarized(items: int) -> None:
    found = summarize(comparison(items, errors=False))
    assert found.versus("cache").score.change.n == items
    assert all(c.verdict == "not shown" for c in found.checks)


def test_without_probes_there_is_no_nll() -> None:
    found = summarize(bare(comparison()))
    assert all(a.nll is None and a.kl is None for a in found.arms)
    assert all(p.nll is None for p in found.against)


def test_figures_that_are_no_numbers_are_left_out_and_told() -> None:
    made = comparison(errors=False)
    rows = [replace(r, kl=float("nan")) if r.arm == "cache" and r.item == made.items[0] else r for r in made.rows]
    found = summarize(replace(made, rows=tuple(rows)))
    assert found.arm("cache").kl.n == 39
    assert "cache has no finite KL on 1 of 40 items" in found.notes[0]


def test_the_summary_is_json_and_the_same_each_time() -> None:
    text = json.dumps(summarize(comparison()).to_json(), allow_nan=False)
    assert text == json.dumps(summarize(comparison()).to_json(), allow_nan=False)
    arm = json.loads(text)["arms"][0]
    assert set(arm["costs"]["seconds"]) == {"mean", "p50", "p95"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "txet"}, "no arm 'txet'. Did you mean 'text'"),
        (
            {"rows": (Row("q0", "text", scores={"em": 1.0}), Row("q0", "text", scores={"em": 1.0}))},
            "2 rows of item 'q0'",
        ),
        ({"rows": (Row("q9", "text", scores={"em": 1.0}),)}, "no item 'q9'"),
        ({"rows": (Row("q0", "cache"),)}, "no arm 'cache'"),
        ({"rows": (Row("q0", "text", scores={}),)}, "has no score 'em'"),
        ({"rows": (Row("q0", "text", scores={"em": float("nan")}),)}, "has no score 'em'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    with pytest.raises(UserError) as refused:
        summarize(replace(small(text=[1.0]), **change))
    assert message in str(refused.value)
