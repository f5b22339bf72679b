"""Spans from a stored run: without OpenTelemetry, of killed and resumed runs, and of old ones."""

from __future__ import annotations

import pytest

from agentflow.errors import RunError
from agentflow.runtime.otlp import otlp_json, stored_spans

SECOND = 1_000_000_000
MANIFEST = {"workflow": "w", "agents": {"act.say": "a"}, "models": {"act.say": "tiny"}, "tools": {}}


def event(kind, at, node="", **data):
    return {"kind": kind, "at": at, "item": "x" if node else "", "node": node, "child": None, "data": data}


FIGURES = {"messages": [], "prefilled": 3, "reused": 0, "generated": 2, "finish": "end", "first_token_seconds": 0.5}
KILLED = [
    event("run_started", 0.0, time=1_000_000_000_000),
    event("node_started", 1.0, "act[0]/say"),
    event("node_finished", 2.0, "act[0]/say", **FIGURES),
    event("node_started", 3.0, "act[1]/say"),
]
RESUMED = [
    event("run_started", 0.0, time=9_000_000_000_000),
    event("node_reused", 0.5, "act[0]/say", **FIGURES),
    event("node_started", 1.0, "act[1]/say"),
    event("node_finished", 2.0, "act[1]/say", **FIGURES),
    {**event("item_finished", 2.0, failed=False), "item": "x"},
    event("run_finished", 2.5, failed=0, cancelled=False),
]


def test_each_process_of_a_run_is_a_trace_and_what_it_left_open_is_ended():
    spans = stored_spans("run-1", MANIFEST, [*KILLED, *RESUMED])
    killed, resumed = dict.fromkeys(span.trace for span in spans)
    first = [span for span in spans if span.trace == killed]
    assert [span.name for span in first] == [
        "invoke_workflow w",
        "item",
        "invoke_agent a",
        "chat tiny",
        "invoke_agent a",
    ]
    assert [span.stop - 1_000_000_000_000 for span in first] == [
        3 * SECOND,
        3 * SECOND,
        2 * SECOND,
        2 * SECOND,
        3 * SECOND,
    ]
    assert [span.status for span in first] == [2, None, None, None, None]
    assert [span.attributes.get("agentflow.unfinished") for span in first] == [None, True, None, None, True]
    second = [span for span in spans if span.trace == resumed]
    assert [span.start for span in second][:2] == [9_000_000_000_000, 9_000_500_000_000]
    assert [name for name, _, _ in second[1].events] == ["agentflow.reused"]
    assert not any(span.status for span in second)
    assert len({span.id for span in spans}) == len(spans)


def test_a_run_of_an_earlier_version_is_refused_in_words():
    with pytest.raises(RunError, match="did not say when it began"):
        otlp_json("run-1", MANIFEST, [event("run_started", 0.0, items=1)])


def test_a_run_in_which_nothing_has_happened_has_no_spans():
    assert stored_spans("run-1", MANIFEST, []) == []
