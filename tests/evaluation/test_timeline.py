"""The timeline of a run: every try a bar, hand-overs with bytes, errors told, foreign text harmless, no network."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from agentflow.evaluation.report.timeline import MOST_ITEMS, MOST_TRACKS, timeline_html
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.manifest import manifest
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore, read_events, read_manifest
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.spans import spans_of
from agentflow.tools import Toolbox
from agentflow.workflow.loader import parse_workflow
from tests.evaluation.test_report_browser import BROWSER, opened
from tests.tiny import tiny_engine

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"
TEXT = """
workflow: picture
inputs: {n: integer}
agents: {a: {model: {source: tests/tiny, model: "<b>tiny"}}}
nodes:
  look: {tool: look, retry: 1}
  say: {agent: a, prompt: "{{ nodes.look.text }}", max_new_tokens: 3}
  each: {tool: look, map: {over: [1, 2, 3]}}
  never: {tool: look, when: "inputs.n > 9"}
  breaks: {tool: breaks}
  after: {agent: a, prompt: after, max_new_tokens: 2}
edges: [{from: look, to: say}, {from: look, to: each}, {from: look, to: never}, {from: breaks, to: after},
  {from: say, to: after}]
"""


@pytest.fixture
def stored(tmp_path):
    """The folder of a run in which a tool fails at first, another always; with items named by somebody else."""
    failing = [True]

    def look() -> str:
        if failing.pop() if failing else False:
            raise LookupError(EVIL)
        return "seen"

    def breaks() -> str:
        raise LookupError(EVIL)

    def run(items=(EVIL,), again=False):
        tools = Toolbox([look, breaks])
        binding = bind(parse_workflow(TEXT), tools)
        pool = EnginePool(factory=lambda spec: tiny_engine())
        if again:
            store = RunStore.open(next(tmp_path.glob("*-picture-*")))
        else:
            store = RunStore.create(tmp_path, "picture", manifest(binding, RunOptions(), channel=None))
        Orchestrator(binding, pool, store=store).run([(item, {"n": 1}) for item in items])
        return store.folder

    return run


def page_of(folder):
    return timeline_html(folder.name, read_manifest(folder), "failed", spans_of(read_events(folder)))


def test_every_try_of_a_unit_is_a_span(stored):
    spans = spans_of(read_events(stored(["x"]))).spans
    ends = [(str(span.unit), span.how) for span in spans]
    assert [how for unit, how in ends if unit == "x/look"] == ["tried again", "done"]
    assert ("x/never", "skipped") in ends
    assert ("x/breaks", "failed") in ends
    assert [how for unit, how in ends if unit.startswith("x/each[")] == ["done"] * 3
    assert all(span.start <= span.end for span in spans)
    (say,) = [span for span in spans if span.unit == Unit("x", "say")]
    assert 0 < say.handover <= say.end - say.start
    assert say.messages[0]["bytes"] > 0


def test_a_resumed_run_goes_on_where_it_stopped(stored):
    folder = stored(["x"])
    first = spans_of(read_events(folder))
    stored(["x"], again=True)
    both = spans_of(read_events(folder))
    assert both.resumed == (first.end,)
    assert both.spans[: len(first.spans)] == first.spans
    assert {span.how for span in both.spans[len(first.spans) :]} == {"reused", "skipped", "failed"}
    assert "in 2 processes" in page_of(folder)


def test_what_a_killed_process_left_open_is_told():
    events = [
        {"kind": "run_started", "at": 0.0, "item": "", "node": "", "child": None, "data": {}},
        {"kind": "node_started", "at": 1.0, "item": "x", "node": "a", "child": None, "data": {}},
        {"kind": "warning", "at": 3.0, "item": "x", "node": "a", "child": None, "data": {}},
    ]
    assert [(s.how, s.start, s.end) for s in spans_of(events).spans] == [("unfinished", 1.0, 3.0)]


def test_foreign_text_is_shown_and_never_obeyed(stored):
    page = page_of(stored())
    assert "<script" not in page
    assert "<b>tiny" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_hand_overs_and_troubles_are_tables(stored):
    page = unescape(page_of(stored(["x"])))
    assert re.search(r"look</td>.*>say</td>.*>text</td><td>1</td><td>\d+ B", page)
    assert "text ← look" in page
    assert page.count("tried again</td>") == 1
    assert "when: inputs.n > 9" in page
    assert "'breaks' failed" in page


def test_large_runs_stay_pages(stored):
    folder = stored(["x"])
    found = spans_of(read_events(folder))
    many = [replace(s, unit=Unit(f"i{n}", s.unit.node)) for n in range(MOST_ITEMS + 2) for s in found.spans]
    side_by_side = [replace(found.spans[0], start=0.0, unit=Unit("i0", "each", n)) for n in range(99)]
    page = timeline_html("run", read_manifest(folder), "done", replace(found, spans=(*many, *side_by_side)))
    assert "2 more items are in the run" in page
    assert f"height:{MOST_TRACKS * 14 + 4}px" in page


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_the_page_opens_without_a_network_and_without_complaints(stored, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page_of(stored()))
    dom, complaints = opened(file, tmp_path / "profile")
    assert not complaints
    assert dom.count('class="bar') == 9


def test_the_command_writes_the_page_into_the_run(tmp_path, stored, capsys, monkeypatch):
    from agentflow.cli.main import main

    folder = stored(["x"])
    for more, file in ((), folder / "timeline.html"), (("--out", str(tmp_path / "p.html")), tmp_path / "p.html"):
        with pytest.raises(SystemExit) as end:
            main(["runs", "timeline", str(folder), *more])
        assert not end.value.code
        assert 'class="bar' in file.read_text()
    with pytest.raises(SystemExit) as end:
        main(["runs", "timeline", str(folder), "--out", str(tmp_path / "no" / "p.html")])
    assert end.value.code == 2


def test_rounds_of_a_loop_are_bars_of_one_row_in_the_colour_of_their_model(tmp_path):
    text = """
workflow: picture
agents: {a: {model: {source: tests/tiny, model: tiny}, max_new_tokens: 2}}
nodes:
  read: {agent: a, prompt: read}
  play:
    loop: {max: 3, nodes: {act: {agent: a, prompt: "{{ round }}"}}, edges: [{from: act, to: act, channel: cache}]}
edges: [{from: read, to: play.act, channel: cache, rounds: first}]
"""
    binding = bind(parse_workflow(text))
    store = RunStore.create(tmp_path, "picture", manifest(binding, RunOptions(), channel=None))
    Orchestrator(binding, EnginePool(factory=lambda spec: tiny_engine()), store=store).run([("x", {})])
    page = page_of(store.folder)
    assert page.count("play.act") >= 1
    assert "play[1]/act" in page  # in the title of its bar
    assert len(re.findall(r'class="bar[^"]*m1', page)) == 4
    assert not re.findall(r'class="bar[^"]*m0', page)


@pytest.mark.parametrize(("end", "unit"), [(0.5, "ms"), (60.0, "s"), (150.0, "min")])
def test_the_scale_has_one_unit(stored, end, unit):
    folder = stored()
    found = spans_of(read_events(folder))
    page = timeline_html("run", read_manifest(folder), "done", replace(found, end=end))
    labels = re.findall(r'<i style="left:[\d.]+%">([\d.]+) (\w+)</i>', page)
    assert len(labels) == 7
    assert {told for _, told in labels} == {unit}
