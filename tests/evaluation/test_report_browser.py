"""The HTML report in a real browser, without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from agentflow.evaluation.report.write import write_reports
from tests.evaluation.samples import comparison, hostile

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
    "--dump-dom",
]

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")


def opened(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's elements after its scripts ran, and what it wrote to the console."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_report_opens_without_a_network_and_without_complaints(tmp_path: Path) -> None:
    page = write_reports(comparison(), tmp_path)["html"]
    assert not re.search(r"https?://", page.read_text(encoding="utf-8"))
    elements, complaints = opened(page, tmp_path / "profile")
    assert complaints == []
    assert "<title>hotpotqa on hotpotqa: 40 items, seed 0</title>" in elements
    assert re.search(r"<td[^>]*>0\.592 \[0\.530, 0\.656\]</td>", elements)
    assert "content crossed: the right message beats the mismatched one" in elements
    assert elements.count("<svg") == 6
    assert '<button type="button">bytes</button>' in elements  # the script ran


def test_foreign_names_run_nothing(tmp_path: Path) -> None:
    page = write_reports(hostile(comparison(5)), tmp_path)["html"]
    elements, complaints = opened(page, tmp_path / "profile")
    assert complaints == []
    assert elements.count("<script>") == 1
    title = re.search(r"<title>(.*?)</title>", elements)
    assert title
    assert unescape(title.group(1)).startswith("<script>alert(1)</script>[red]")


def test_a_click_on_a_head_sorts_the_table(tmp_path: Path) -> None:
    page = write_reports(comparison(), tmp_path)["html"]
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))
    click = "<script>document.querySelector('#channels ~ .scroll th:nth-child(2) button').click()</script>"
    clicked = tmp_path / "clicked.html"
    orders = []
    for clicks in (1, 2):
        clicked.write_text(text.replace("</body>", click * clicks + "</body>"), encoding="utf-8")
        elements, _ = opened(clicked, tmp_path / "profile")
        body = elements.split("<tbody>")[1].split("</tbody>")[0]
        orders.append(re.findall(r'<th scope="row" data-value="([^"]+)"', body))
    briefings = [f"latent_briefing[t={t}]" for t in range(3)]
    assert orders == [["text", "cache", *briefings], [*reversed(briefings), "text", "cache"]]


def test_everything_is_there_without_scripts(tmp_path: Path) -> None:
    page = write_reports(comparison(), tmp_path)["html"]
    text = re.sub(r"<script>.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    bare = tmp_path / "bare.html"
    bare.write_text(text, encoding="utf-8")
    elements, complaints = opened(bare, tmp_path / "profile")
    assert complaints == []
    assert "<button" not in elements
    assert re.search(r"<td[^>]*>0\.592 \[0\.530, 0\.656\]</td>", elements)
    assert "the Battle of Hastings" in elements
