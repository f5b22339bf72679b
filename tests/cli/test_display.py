"""Tables, the live view and JSON: nothing cut, nothing obeyed, nothing that is no JSON."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from agentflow.cli import console
from agentflow.cli.live import LiveView, PlainLines, live
from agentflow.cli.tables import FiguresTable, failures, figures_json, item_panel
from agentflow.evaluation.figures import ChannelFigures, ItemFigures
from agentflow.runtime.events import Event
from agentflow.runtime.results import ItemResult, MemoryResult, NodeResult

MEMORY = MemoryResult("drop_oldest", 90, 80, tokens=1200, dropped=4)
FOREIGN = "[red]:fire:\x1b[2J\\"


@dataclass
class Flow:
    """As much of a workflow as a display looks at."""

    nodes: dict[str, None] = field(default_factory=lambda: {"read": None, "answer": None})


def shown(thing, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, emoji=False).print(thing)
    return stream.getvalue()


def figures(channel: str = "cache", error: str = "") -> ChannelFigures:
    scores = {} if error else {"exact": 0.5, "contains": 1.0, "recalled": 1.0}
    item = ItemFigures("item-1", "digits", scores, ("a",), 78, 155, 15, 7_300_000, 0.2, 1.0, error)
    return ChannelFigures(channel, "exact", (item,))


def result(text: str) -> NodeResult:
    return NodeResult(text, "stop", 81, 0, 15, 0.1, 1.5)


@pytest.mark.parametrize("width", [30, 50, 80, 140])
def test_a_table_of_results_is_never_cut(width):
    table = shown(FiguresTable("facts", (figures("text"), figures("cache"))), width)
    assert "…" not in table
    assert "exact" in table
    assert "0.500" in table
    assert max(len(line) for line in table.splitlines()) <= width


def test_a_channel_where_everything_failed_has_dashes_beside_one_that_worked():
    table = shown(FiguresTable("facts", (figures("text", error="lost"), figures("cache"))), 140)
    assert "nan" not in table
    assert "0.500" in table
    assert failures([figures("text", error=FOREIGN)])[0].startswith("[red]failed[/] text, item-1: \\[red]")


def test_json_has_null_where_nothing_was_measured(capsys):
    console.print_json(figures_json(figures(error="lost")))
    assert json.loads(capsys.readouterr().out)["prefilled"] is None


def test_foreign_text_is_shown_and_not_obeyed():
    outcome = ItemResult("run", {"read": (result(FOREIGN),)}, {"answer": FOREIGN}, {"x/[b]y": FOREIGN})
    screen = shown(item_panel(outcome))
    assert screen.count("[red]:fire:") == 2
    assert "[b]y" in screen
    assert "\x1b" not in screen


def events():
    yield Event("run_started", 0.0, data={"items": 2})
    yield Event("node_started", 0.1, "a", "answer", 0)
    yield Event("node_started", 0.1, "a", "answer", 1)
    yield Event("message", 0.1, "a", "answer", 0, {"bytes": 1500})
    yield Event("node_token", 0.2, "a", "answer", 0, {"text": "first"})
    yield Event("node_token", 0.2, "a", "answer", 1, {"text": "other"})
    yield Event("node_token", 0.2, "a", "answer", 0, {"text": FOREIGN + "\n世界" * 200})


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_live_view_keeps_its_figures_whole_and_listens_to_one_unit(width):
    view = LiveView(Flow(), FOREIGN)
    for event in events():
        view(event)
    screen = shown(view, width)
    assert "2 running" in screen
    assert "waiting" in screen
    assert "other" not in screen
    assert "prefilled" in screen
    assert "\x1b" not in screen
    assert max(console_width(line) for line in screen.splitlines()) <= width


def console_width(line: str) -> int:
    from rich.cells import cell_len

    return cell_len(line)


def test_the_live_view_counts_what_ended():
    view = LiveView(Flow(), "facts")
    for event in events():
        view(event)
    view(Event("node_finished", 1.0, "a", "answer", 0, result("x").to_json()))
    view(Event("node_failed", 1.0, "a", "answer", 1, {"error": "lost"}))
    view(Event("node_skipped", 1.0, "a", "read", None, {"because": "answer"}))
    view(Event("node_started", 1.0, "a", "of another workflow"))
    view(Event("item_finished", 1.0, "a", data={"failed": True}))
    screen = shown(view)
    for part in ("1 done, 1 failed", "1 skipped", "1/2"):
        assert part in screen


def test_plain_lines_tell_nodes_of_one_item_and_items_of_many():
    stream = io.StringIO()
    lines = PlainLines(Console(file=stream, width=200, emoji=False), "facts")
    lines(Event("run_started", 0.0, data={"items": 1}))
    lines(Event("node_finished", 1.0, "a", "answer", 0, result("x").to_json()))
    lines(Event("node_failed", 1.0, "a", "answer", 1, {"error": FOREIGN}))
    lines(Event("item_finished", 2.0, "a", data={"failed": False}))
    told = stream.getvalue()
    assert "facts: answer[0]: 1.50 s, prefilled 81" in told
    assert "[red]:fire:\\x1b" in told
    lines(Event("run_started", 0.0, data={"items": 3}))
    lines(Event("item_finished", 2.0, "a", data={"failed": False}))
    assert "/3 items, 2.00 s" in stream.getvalue()


def test_the_live_view_folds_the_rounds_of_a_loop_into_one_row_a_node():
    view = LiveView(Flow({"play[0]/act": None, "play[1]/act": None, "tell": None}), "game")
    view(Event("run_started", 0.0, data={"items": 1}))
    for number in range(2):
        view(Event("node_started", 1.0, "a", f"play[{number}]/act"))
        view(Event("memory", 1.0, "a", f"play[{number}]/act", None, vars(MEMORY)))
        view(Event("node_finished", 2.0, "a", f"play[{number}]/act", None, result("x").to_json()))
    view(Event("loop_ended", 2.0, "a", "play", None, {"rounds": 2, "of": 9}))
    (row,) = [line for line in shown(view).splitlines() if line.startswith("play")]
    assert row.split()[:6] == ["play.act", "2", "done,", "2", "cut", "to"]
    assert "162" in row  # prefilled, of both rounds
    assert "play[" not in shown(view)


def test_plain_lines_tell_how_a_loop_ended_and_what_was_done_for_an_agents_memory():
    stream = io.StringIO()
    lines = PlainLines(Console(file=stream, width=200, emoji=False), "game")
    lines(Event("run_started", 0.0, data={"items": 1}))
    lines(Event("memory", 1.0, "a", "play[1]/act", None, vars(MEMORY)))
    lines(Event("loop_ended", 2.0, "a", "play", None, {"rounds": 1, "of": 9}))
    assert stream.getvalue().splitlines() == [
        "game: play[1]/act: memory of 90 tokens: 1,200 needed, 4 oldest turns dropped",
        "game: play: ended after 1 round of at most 9",
    ]
    lines(Event("run_started", 0.0, data={"items": 2}))
    lines(Event("loop_ended", 2.0, "a", "play", None, {"rounds": 1, "of": 9}))
    assert len(stream.getvalue().splitlines()) == 2  # of many items, only how many are through


def warning(text: str, node: str = "answer") -> Event:
    return Event("warning", 1.0, "a", node, None, {"sender": "plan", "text": text})


def test_the_live_view_shows_each_kind_of_warning_once_with_its_number():
    view = LiveView(Flow(), "facts")
    for n in range(12):
        view(warning(f"output error 0.{n} is above 0.30"))
    view(warning(FOREIGN))
    screen = shown(view)
    assert "warning: answer ← plan: output error 0.11 is above 0.30 (12 times)" in screen
    assert "\\x1b" in screen
    assert "\x1b" not in screen
    for word in ("one", "two", "three", "four"):
        view(warning(word))
    assert "warning: 2 other kinds" in shown(view)
    assert max(console_width(line) for line in shown(view, 40).splitlines()) <= 40


def test_plain_lines_tell_alike_warnings_three_times_and_their_number_at_the_end():
    stream = io.StringIO()
    lines = PlainLines(Console(file=stream, width=200, emoji=False), "facts")
    lines(Event("run_started", 0.0, data={"items": 9}))
    for n in range(7):
        lines(warning(f"output error 0.{n} is above 0.30"))
    lines(warning(FOREIGN, "read"))
    told = stream.getvalue().splitlines()
    assert told[0] == "facts: warning: answer ← plan: output error 0.0 is above 0.30"
    assert told[2].endswith("0.2 is above 0.30 (more of these are counted)")
    assert len(told) == 4
    assert "\\x1b" in told[3]
    lines(Event("run_finished", 9.0, data={"failed": 0, "cancelled": False}))
    assert stream.getvalue().splitlines()[4:] == [
        "facts: warning: answer ← plan: output error 0.6 is above 0.30 (7 times)"
    ]


def test_the_view_is_plain_where_there_is_no_terminal():
    with live(Console(file=io.StringIO()), Flow(), "x") as listener:
        assert isinstance(listener, PlainLines)
    with live(Console(file=io.StringIO(), force_terminal=True), Flow(), "x") as listener:
        assert isinstance(listener, LiveView)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12 ms"), (1.5, "1.50 s"), (120, "2.0 min"), (float("nan"), "–")],
)
def test_durations(value, text):
    assert console.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(999, "999 B"), (1500, "1.5 KB"), (7.3e6, "7.3 MB"), (2.5e9, "2.50 GB"), (float("nan"), "–")],
)
def test_amounts(value, text):
    assert console.amount(value) == text


def test_counts_have_their_plural():
    assert [console.count(n, "edge") for n in (0, 1, 1200)] == ["0 edges", "1 edge", "1,200 edges"]
