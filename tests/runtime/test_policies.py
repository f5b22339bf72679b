"""What a workflow says of nodes that need not run or that fail: `when`, `retry`, `timeout`, `on_error`; stopping."""

from __future__ import annotations

import time

import pytest

from agentflow.channels.text import TextChannel
from agentflow.errors import UserError
from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore
from tests.stored import lose

FORK = """
workflow: fork
inputs: {n: integer, words: {type: list, default: [red, blue]}}
agents: {a: {model: MODEL}}
nodes:
  read: {agent: a, prompt: read, max_new_tokens: 3}
  big: {agent: a, prompt: big, max_new_tokens: 3, when: "inputs.n > 5"}
  more: {agent: a, prompt: "more {{ nodes.big.text }}", max_new_tokens: 3}
  each: {agent: a, map: {over: inputs.words}, prompt: "{{ item }}", max_new_tokens: 3}
  join: {agent: a, prompt: "join {{ nodes.more.text }}{{ nodes.each.texts }}", max_new_tokens: 3}
edges:
  - {from: read, to: big, channel: cache}
  - {from: big, to: more}
  - {from: more, to: join}
  - {from: read, to: each}
  - {from: each, to: join}
outputs: {join: "{{ nodes.join.text }}", more: "{{ nodes.more.texts }}"}
"""


@pytest.fixture
def run(flow, engines):
    """Run a changed workflow once; the result, and the events by kind."""

    def go(*changes, n=3, options=None, store=None):
        text = FORK
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        events = []
        runner = Orchestrator(bind(flow(text)), engines, listeners=[events.append], options=options, store=store)
        result = runner.run([("x", {"n": n, "words": ["red", "blue"]})])[0]
        return result, lambda kind: [(e.node, e.child, e.data) for e in events if e.kind == kind]

    return go


@pytest.fixture
def broken(monkeypatch):
    """Let the text channel fail: so many times from now on, for one sender."""
    send = TextChannel.send

    def set_up(sender, times):
        left = [times]

        def fails(self, message, task):
            if message.sender == sender and left[0] > 0:
                left[0] -= 1
                raise RuntimeError("no luck")
            return send(self, message, task)

        monkeypatch.setattr(TextChannel, "send", fails)

    return set_up


def test_a_node_whose_condition_is_false_is_left_out_with_what_hears_nobody_else(run):
    result, events = run(n=3)
    assert result.errors == {}
    assert result.skipped == {"x/big": "when: inputs.n > 5", "x/more": "hears nobody: 'big' was skipped"}
    assert result.outputs["more"] == []
    assert result.outputs["join"]
    assert [m.sender for m in result.nodes["join"][0].messages] == ["each", "each"]
    assert [(node, data["because"]) for node, _, data in events("node_skipped")] == [
        ("big", "when: inputs.n > 5"),
        ("more", "hears nobody: 'big' was skipped"),
    ]


def test_a_node_whose_condition_is_true_runs(run):
    result, _ = run(n=6)
    assert result.skipped == {}
    assert len(result.outputs["more"]) == 1


def test_a_condition_sees_what_earlier_nodes_said(run):
    result, _ = run(('when: "inputs.n > 5"', 'when: "nodes.read.text | length < 1000"'))
    assert result.skipped == {}
    result, _ = run(('when: "inputs.n > 5"', "when: \"'no such words' in nodes.read.text\""))
    assert set(result.skipped) == {"x/big", "x/more"}


@pytest.mark.parametrize("when", ["inputs.n", "'false'", "inputs.words"])
def test_a_condition_that_is_neither_true_nor_false_is_an_error_at_its_place(run, when):
    result, _ = run(('when: "inputs.n > 5"', f'when: "{when}"'))
    assert "neither true nor false" in result.errors["x/big"]
    assert ":7:57" in result.errors["x/big"]


def test_a_mapped_node_is_left_out_as_a_whole(run):
    result, _ = run(("map: {over: inputs.words}", 'when: "false", map: {over: inputs.words}'), n=6)
    assert result.skipped == {"x/each": "when: false"}
    assert result.nodes["each"] == ()
    assert result.outputs["join"]


def test_a_failure_that_passes_is_tried_again(run, broken):
    broken("big", 2)
    result, events = run(('prompt: "more', 'retry: 2, prompt: "more'), n=6)
    assert result.errors == {}
    assert [(node, data["attempt"], data["wait"]) for node, _, data in events("node_retried")] == [
        ("more", 2, 0.0),
        ("more", 3, 0.0),
    ]
    assert "no luck" in events("node_retried")[0][2]["error"]


def test_a_failure_that_stays_ends_after_the_last_try(run, broken):
    broken("big", 9)
    result, events = run(('prompt: "more', 'retry: 2, prompt: "more'), n=6)
    assert "no luck" in result.errors["x/more"]
    assert len(events("node_retried")) == 2


def test_tries_wait_longer_each_time_and_others_go_on_meanwhile(run, broken):
    broken("big", 2)
    start = time.perf_counter()
    result, events = run(('prompt: "more', 'retry: {count: 2, wait: 0.2, growth: 3}, prompt: "more'), n=6)
    assert time.perf_counter() - start > 0.8
    assert [data["wait"] for _, _, data in events("node_retried")] == pytest.approx([0.2, 0.6])
    assert result.errors == {}
    order = [node for node, _, _ in events("node_finished")]
    assert order.index("each") < order.index("more")


@pytest.mark.parametrize(("on", "tried"), [("other", 1), ("channel", 0), ("[timeout, memory]", 0)])
def test_only_the_errors_that_are_named_are_tried_again(run, broken, on, tried):
    broken("big", 1)
    result, events = run(('prompt: "more', f'retry: {{count: 1, on: {on}}}, prompt: "more'), n=6)
    assert len(events("node_retried")) == tried
    assert bool(result.errors) == (not tried)


def test_each_try_samples_with_a_seed_of_its_own(run, broken):
    seeds = []
    broken("big", 1)
    change = ('prompt: "more', 'retry: 1, temperature: 1.0, prompt: "more')
    from agentflow.runtime import turns

    plan = turns.plan_turn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "plan_turn", lambda *a, **k: seeds.append(k["seed"]) or plan(*a, **k))
        first, _ = run(change, n=6)
        tried = set(seeds)
        seeds.clear()
        run(change, n=6)  # nothing fails
    assert len(tried - set(seeds)) == 1
    assert first.errors == {}


SLOW = ("prompt: read, max_new_tokens: 3", "prompt: read, max_new_tokens: 400, timeout: 0.05")


def test_time_that_runs_out_cuts_an_answer_or_is_an_error_where_the_node_says_what_to_do_then(run):
    result, _ = run(SLOW)
    assert result.errors == {}
    assert result.nodes["read"][0].finish == "deadline"
    result, events = run((SLOW[0], SLOW[1] + ", retry: {count: 1, on: timeout}"))
    assert result.errors["x/read"] == "no whole answer within 0.05 s"
    assert len(events("node_retried")) == 1
    result, _ = run((SLOW[0], SLOW[1] + ", on_error: {fallback: nothing}"))
    assert result.nodes["read"][0].text == "nothing"


def test_a_failed_node_may_be_left_out(run, broken):
    broken("big", 9)
    result, events = run(('prompt: "more', 'on_error: skip, prompt: "more'), n=6)
    assert result.errors == {}
    assert result.skipped == {"x/more": "RuntimeError: no luck"}
    assert result.outputs["join"]
    assert events("node_failed") == []


def test_a_failed_child_that_is_left_out_keeps_its_place(run):
    result, _ = run(
        (
            'map: {over: inputs.words}, prompt: "{{ item }}"',
            'map: {over: inputs.words}, on_error: skip, prompt: "{{ 1 // index }}"',
        )
    )
    assert result.skipped["x/each[0]"]
    first, second = result.nodes["each"]
    assert (first.text, first.finish) == ("", "skipped")
    assert second.text
    assert len(result.nodes["join"][0].messages) == 1


@pytest.mark.parametrize("channel", ["text", "cache", "{name: text, scope: answer}"])
def test_a_fallback_stands_in_for_an_answer_in_templates_and_messages(run, broken, channel):
    result, events = run(
        (
            'map: {over: inputs.words}, prompt: "{{ item }}"',
            'map: {over: inputs.words}, on_error: {fallback: "no {{ item }} of {{ inputs.n }}"}, '
            'prompt: "{{ 1 // index }}"',
        ),
        ("{from: each, to: join}", f"{{from: each, to: join, channel: {channel}}}"),
    )
    assert result.errors == {}
    assert result.answers("each")[0] == "no red of 3"
    assert result.nodes["each"][0].finish == "fallback"
    assert len(result.nodes["join"][0].messages) == 2
    assert result.outputs["join"]
    (warning,) = events("warning")
    assert warning[2]["text"].startswith("fallback: ")


def test_a_fallback_that_fails_as_well_says_both(run):
    result, _ = run(("prompt: read,", 'on_error: {fallback: "{{ 1 // 0 }}"}, prompt: "{{ 2 // 0 }}",'))
    assert "Its fallback failed as well" in result.errors["x/read"]


def test_without_keep_going_nothing_starts_after_a_failure(run, broken):
    broken("big", 9)
    result, _ = run(options=RunOptions(keep_going=False, max_batch=1), n=6)
    assert "no luck" in result.errors["x/more"]
    assert result.errors["x/each"].startswith("not run")
    result, _ = run(n=6)
    assert len(result.nodes["each"]) == 2


def test_until_runs_a_node_and_what_it_depends_on(run):
    result, events = run(options=RunOptions(until="more"), n=6)
    assert {node for node, _, _ in events("node_finished")} == {"read", "big", "more"}
    assert (result.errors, result.outputs) == ({}, {})
    with pytest.raises(UserError, match="Did you mean 'more'"):
        run(options=RunOptions(until="mor"))


def test_what_was_left_out_or_replaced_is_so_again_when_the_run_is_resumed(run, tmp_path):
    changes = [("prompt: read,", 'on_error: {fallback: "as ever"}, prompt: "{{ \'red \' * 600 }}",')]
    first, _ = run(*changes, store=RunStore.create(tmp_path, "fork", {}))
    (folder,) = tmp_path.iterdir()
    again, events = run(*changes, store=RunStore.open(folder))
    assert events("node_finished") == []
    assert len(events("node_reused")) == 4
    assert (again.outputs, again.skipped) == (first.outputs, first.skipped)
    lose(folder, lambda unit: unit.node == "join")
    again, events = run(*changes, store=RunStore.open(folder))
    assert [node for node, _, _ in events("node_finished")] == ["join"]
    assert again.outputs == first.outputs
    _, events = run((changes[0][0], changes[0][1].replace("ever", "never")), store=RunStore.open(folder))
    assert [node for node, _, _ in events("node_finished")] == ["read", "each", "each", "join"]
