from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from agentflow.errors import RunError
from agentflow.evaluation.report.columns import columns
from agentflow.evaluation.report.format import amount, fact, probability, seconds, two_seconds, visible
from agentflow.evaluation.report.html import MOST_ITEMS, html_report
from agentflow.evaluation.report.json_report import json_report
from agentflow.evaluation.report.markdown import markdown_report
from agentflow.evaluation.report.terminal import ComparisonView
from agentflow.evaluation.report.words import findings
from agentflow.evaluation.report.write import write_reports
from agentflow.evaluation.rows import Comparison
from agentflow.evaluation.summary import Summary, summarize
from tests.evaluation.samples import BRIEFING, bare, comparison, hostile, only, with_errors

FULL = comparison()
CASES = {
    "full": FULL,
    "one item": comparison(1, errors=False),
    "an arm that finished nothing": with_errors(FULL, {(i, "zero(cache)"): "refused" for i in FULL.items}),
    "a reference that finished nothing": with_errors(FULL, {(i, "text"): "refused" for i in FULL.items}),
    "no rows": replace(FULL, rows=()),
    "no probe, no groups": bare(FULL),
    "one arm": only(FULL, ["text"]),
    "no controls": only(FULL, ["text", "cache"]),
    "hostile names": hostile(FULL),
}
VOID = {"meta", "link", "br", "wbr"}


class Checked(HTMLParser):
    """Reads a page; fails on tags that do not match; collects ids, addresses, cells and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
                self.loads.append(str(value))
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Checked:
    found = Checked()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


@cache
def summary_of(case: str) -> Summary:
    return summarize(CASES[case])


def shown(made: Comparison, width: int, **settings: bool) -> str:
    console = Console(file=StringIO(), width=width, color_system="truecolor", force_terminal=True)
    case = next((name for name, known in CASES.items() if known is made), None)
    console.print(ComparisonView(summary_of(case) if case else summarize(made), **settings))
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


@pytest.mark.parametrize("case", CASES)
def test_every_report_can_be_made_of_every_comparison(case: str) -> None:
    made, summary = CASES[case], summary_of(case)
    page = read(html_report(summary, made))
    assert len(page.ids) == len(set(page.ids))
    assert all(load.startswith(("#", "data:,")) for load in page.loads)
    assert page.handlers == []
    assert page.tags.count("script") == 1
    assert json.loads(json_report(summary, made))["comparison"]["seed"] == 0
    assert markdown_report(summary, made).startswith("# ")
    assert "smallest difference this run could see (80 % power)" in shown(made, 300)
    assert not any("nan" in line.split() for line in findings(summary))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [60, 100, 140])
def test_the_terminal_view_fits(case: str, width: int) -> None:
    assert max(cell_len(line.rstrip()) for line in shown(CASES[case], width).splitlines()) <= width


def test_a_hundred_columns_hold_what_matters_and_wide_holds_everything() -> None:
    text = shown(FULL, 100)
    head = text.split("───")[0]
    for title in ("f1 [95 %]", "Δ f1 [95 %]", "prefill", "bytes", "first token"):
        assert title in head
    assert text.index("latent_briefing[t=2]") < text.index("no message")
    assert "content crossed" in text
    assert "errored items: 2 failed" in text
    assert "8.5 points of f1 over 38 pairs" in " ".join(text.split())
    wide = shown(FULL, 400, wide=True)
    assert "not shown for want of room" not in wide
    assert "0.592 [0.530, 0.656]" in wide
    for column in columns(summary_of("full")):
        assert all(word in wide for word in column.title.split())


def test_columns_without_anything_to_say_are_left_out() -> None:
    keys = {c.key for c in columns(summarize(bare(comparison(errors=False))))}
    assert keys.isdisjoint({"nll", "nll_change", "kl", "failed"})
    assert {"change", "first_token_seconds", "peak"} <= keys


def test_the_report_says_first_what_the_run_shows() -> None:
    lines = findings(summary_of("full"))
    assert lines[0] == "The reference, text, scores 0.592 [0.530, 0.656] f1 over 40 items."
    assert lines[1].startswith(
        "cache scores exactly as text on all 38 pairs. It takes 27 prefilled tokens instead of 908"
    )
    assert lines[2].startswith("latent_briefing[t=0] can't be told from text: f1 −0.012")
    assert lines[4].startswith("latent_briefing[t=2] is worse than text: f1 −0.262")
    assert "Over cache, content crossed: the right message beats the mismatched one by 0.48" in lines[5]
    page = html_report(summary_of("full"), FULL)
    assert page.index("What this run shows") < page.index("<table")


def test_a_run_without_the_content_control_says_what_it_does_not_show() -> None:
    assert any(
        "not shown that any content crossed" in line for line in findings(summarize(only(FULL, ["text", "cache"])))
    )


def test_the_page_holds_tables_with_heads_answers_and_plots_with_words() -> None:
    page = html_report(summary_of("full"), FULL)
    for part in (
        '<th scope="row" data-value="cache">',
        '<th scope="col"',
        '<td data-value="0.59',
        "the Battle of Hastings",
        "failed: answer: out of memory",
        'role="img" aria-labelledby="forest-title forest-desc"',
        "prefers-color-scheme: dark",
        "agentflow compare hotpotqa --data dev.jsonl.gz",
        "HotpotQA, arXiv 1809.09600",
        "weights 3f2a, dtype float32",
    ):
        assert part in page
    assert page.count("<svg") == page.count("</svg>") == 6
    assert not re.search(r"https?://", page)


def test_foreign_text_stays_text() -> None:
    made, summary = CASES["hostile names"], summary_of("hostile names")
    page = html_report(summary, made)
    assert "<script>alert" not in page
    assert "alert(1)</script>" not in page
    assert "\x1b" not in page
    assert page.count("<script>") == 1
    text = shown(made, 400, wide=True)
    assert "<script>alert(1)</script>[red]" in text
    assert "\x1b[2J" not in text
    document = markdown_report(summary, made)
    assert "<script>" not in re.sub(r"\\<|```.*?```", "", document, flags=re.DOTALL)
    assert document.count("```") == 2
    table = document.split("## Channels\n\n")[1].split("\n\n")[0].splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert json.loads(json_report(summary, made))["comparison"]["workflow"] == made.workflow


def test_the_markdown_table_lines_up() -> None:
    document = markdown_report(summary_of("full"), FULL)
    table = document.split("## Channels\n\n")[1].split("\n\n")[0].splitlines()
    assert len({len(line) for line in table}) == 1
    assert table[1].startswith("| ---")
    assert "| latent_briefing[t=0] |" in document
    assert "- n: 40 items, 38 in pairs" in document
    assert "- seed: 0" in document


def test_the_json_report_holds_the_rows_and_no_figure_that_is_no_number() -> None:
    odd = replace(FULL, rows=(replace(FULL.rows[0], kl=float("nan")), *FULL.rows[1:]), machine={"path": Path("x")})
    data = json.loads(json_report(summarize(odd), odd), parse_constant=pytest.fail)
    assert data["format"] == "agentflow-comparison/1"
    assert len(data["comparison"]["rows"]) == len(FULL.rows)
    assert data["comparison"]["rows"][0]["kl"] is None
    assert data["summary"]["common"] == 38


def test_long_runs_keep_the_page_small() -> None:
    made = only(comparison(MOST_ITEMS + 3, errors=False), ["text", "cache"])
    page = html_report(summarize(made), made)
    assert "3 more items are in report.json" in page
    assert len(page) < 2_000_000


def test_the_files_are_whole_and_replace_older_ones(tmp_path: Path) -> None:
    paths = write_reports(FULL, tmp_path / "deep" / "folder")
    assert {k: p.name for k, p in paths.items()} == {"html": "report.html", "md": "report.md", "json": "report.json"}
    first = paths["html"].read_text(encoding="utf-8")
    odd = replace(FULL, rows=(replace(FULL.rows[0], answers=("broken \ud83d",)), *FULL.rows[1:]))
    write_reports(odd, tmp_path / "deep" / "folder", summarize(odd))
    assert paths["html"].read_text(encoding="utf-8") != first
    assert json.loads(paths["json"].read_text(encoding="utf-8"))["comparison"]["rows"][0]["answers"] == [
        "broken \ud83d"
    ]
    assert sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir()) == [
        "report.html",
        "report.json",
        "report.md",
    ]


def test_the_same_comparison_gives_the_same_files(tmp_path: Path) -> None:
    one, two = write_reports(FULL, tmp_path / "a"), write_reports(FULL, tmp_path / "b")
    assert all(one[kind].read_bytes() == two[kind].read_bytes() for kind in one)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="can't be written"):
        write_reports(FULL, tmp_path / "taken")


def test_figures_read_well() -> None:
    assert [amount(v) for v in (None, 0, 312, 999.6, 21_500_000, 3.2e9)] == [
        "–",
        "0 B",
        "312 B",
        "1.0 KB",
        "21.5 MB",
        "3.20 GB",
    ]
    assert [seconds(v) for v in (None, 0.0874, 0.9999, 1.25, 190)] == ["–", "87 ms", "1.00 s", "1.25 s", "3.2 min"]
    assert [two_seconds(0.08, 0.13), two_seconds(0.8, 1.3), two_seconds(30, 150)] == [
        "80/130 ms",
        "0.80/1.30 s",
        "0.5/2.5 min",
    ]
    assert [probability(v) for v in (None, 0.0004, 0.012, 0.25)] == ["–", "<0.001", "0.012", "0.25"]
    assert fact({"a": {"b": 1}, "c": [1, "x"]}) == "a (b 1), c 1, x"
    assert fact({}) == fact(None) == "–"
    assert visible("a\x1b[2J\u202eb") == "a\\x1b[2J\\u202eb"


def test_settings_do_not_break_the_names_of_arms() -> None:
    assert f"{BRIEFING}<wbr>[t=0]" in html_report(summary_of("full"), FULL)
