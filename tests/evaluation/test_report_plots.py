from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from agentflow.evaluation.report.plots import kept_share, plots
from agentflow.evaluation.summary import summarize
from tests.evaluation.samples import bare, comparison, hostile, only

FULL = comparison()


def drawn(made) -> dict[str, str]:
    return {p.key: p.svg for p in plots(summarize(made))}


def test_a_full_comparison_has_every_plot() -> None:
    assert list(drawn(FULL)) == ["first_token_seconds", "prefilled", "bytes", "forest", "kept", "seconds"]


@pytest.mark.parametrize("made", [FULL, hostile(FULL), bare(FULL), comparison(1, errors=False), only(FULL, ["text"])])
def test_every_plot_is_well_formed_loads_nothing_and_follows_the_page(made) -> None:
    for svg in drawn(made).values():
        ET.fromstring(svg)
        assert "http" not in svg
        assert "#0102" not in svg  # every stand-in colour was replaced
        assert "currentColor" in svg
        assert "<script" not in svg


def test_plots_say_in_words_what_they_show() -> None:
    every = {p.key: p for p in plots(summarize(FULL))}
    assert "cache: f1 0.592 [0.530, 0.656] at 112 ms" in every["first_token_seconds"].alt
    assert "latent_briefing[t=2]: −0.262 [−0.322, −0.211]" in every["forest"].alt
    assert "latent_briefing[t=0]: 53 % kept" in every["kept"].alt
    assert "text: encode 0 ms, inject 0 ms, prefill, first token" in every["seconds"].alt
    for plot in every.values():
        assert f'<title id="{plot.key}-title">' in plot.svg
        assert f'<desc id="{plot.key}-desc">' in plot.svg


def test_kept_share_is_drawn_only_for_a_channel_at_several_shares() -> None:
    assert kept_share(summarize(only(FULL, ["text", "cache", "latent_briefing[t=0]", "no message"]))) is None
    assert kept_share(summarize(only(FULL, ["text", "latent_briefing[t=0]", "latent_briefing[t=1]"]))) is not None


def test_kept_share_without_nll_shows_the_score_alone() -> None:
    assert "NLL (nats" not in drawn(bare(FULL))["kept"]
    assert "NLL (nats" in drawn(FULL)["kept"]


def test_payloads_of_no_bytes_stand_at_zero_on_the_logarithmic_axis() -> None:
    assert ">0 B</text>" in drawn(FULL)["bytes"]
    assert ">0 B</text>" not in drawn(only(FULL, ["text", "cache"]))["bytes"]


def test_names_with_underscores_stay_in_the_legend() -> None:
    made = only(FULL, ["text", "cache"])
    rows = tuple(replace(r, arm="_text") if r.arm == "text" else r for r in made.rows)
    arms = tuple(replace(a, name="_text") if a.name == "text" else a for a in made.arms)
    assert re.search(
        r">\u200b?_text</text>", drawn(replace(made, rows=rows, arms=arms, reference="_text"))["prefilled"]
    )


def test_the_drawing_leaves_matplotlibs_settings_as_they_were() -> None:
    before = dict(mpl.rcParams)
    drawn(only(FULL, ["text", "cache"]))
    assert dict(mpl.rcParams) == before
