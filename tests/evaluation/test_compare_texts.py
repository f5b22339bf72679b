"""Channels that choose or write texts, compared: their price in the totals, and the controls that make sense."""

from __future__ import annotations

import pytest

from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.controls import CONTROLS
from agentflow.evaluation.figures import measure
from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator

SUMMARY = {"name": "summary", "max_tokens": 8}
CHOSEN = {"name": "retrieval", "ratio": 0.5}


@pytest.fixture
def found(workflow, task, engines):
    options = CompareOptions(controls=tuple(CONTROLS))
    items = task.items(data=None, limit=2, seed=0)
    return compare(workflow, task, items, ["text", SUMMARY, CHOSEN], engines, options=options)


def test_texts_are_compared_with_every_control_that_makes_sense(found):
    assert not [row.error for row in found.rows if row.error]
    summary, chosen = "summary[max_tokens=8]", "retrieval[ratio=0.5]"
    assert [arm.name for arm in found.arms] == [
        *("text", summary, chosen, "no message", "sender alone"),
        *(f"mismatched({name})" for name in ("text", summary, chosen)),
        *(f"equal bytes({name})" for name in (summary, chosen)),
        *(f"equal positions({summary})", f"equal seconds({summary})"),
    ]


def test_what_a_summary_computes_and_generates_is_in_the_totals(found):
    for text, summary in zip(found.of("text"), found.of("summary[max_tokens=8]"), strict=True):
        assert summary.generated > text.generated + 2
        assert summary.positions < text.positions
        assert summary.prefilled > summary.positions  # the instruction was computed twice, once for each worker
        assert 0 < summary.kept == summary.message_positions <= 2 * 16
        assert text.message_positions == 0


def test_text_in_place_of_a_text_is_no_larger_for_any_receiver(found, workflow):
    system = len(workflow.agents["reader"].system.encode())
    for name in ("summary[max_tokens=8]", "retrieval[ratio=0.5]"):
        for ours, cut in zip(found.of(name), found.of(f"equal bytes({name})"), strict=True):
            assert ours.messages == cut.messages == 2
            assert 0 < cut.bytes <= max(ours.bytes, 2 * system)
    for ours, best in zip(
        found.of("summary[max_tokens=8]"), found.of("equal positions(summary[max_tokens=8])"), strict=True
    ):
        assert best.kept <= ours.kept
    for ours, whole in zip(found.of("retrieval[ratio=0.5]"), found.of("text"), strict=True):
        assert ours.prefilled < whole.prefilled
        assert ours.bytes < whole.bytes


def test_the_figures_of_a_plain_run_count_what_channels_compute_too(workflow, task, engines):
    items = task.items(data=None, limit=1, seed=0)
    binding = bind(workflow.with_channel(SUMMARY))
    inputs = [(items[0].id, dict(items[0].inputs))]
    results = Orchestrator(binding, engines, options=RunOptions(reuse=False)).run(inputs)
    (figures,) = measure(binding, task, "summary", items, results).items
    answers = results[0].nodes["answer"]
    assert figures.generated == sum(a.generated + a.messages[0].generated for a in answers)
    assert figures.prefilled == sum(a.prefilled + a.messages[0].prefilled for a in answers)
    assert all(a.messages[0].generated for a in answers)
