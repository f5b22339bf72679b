"""Comparisons on tiny models: paired rows, controls that mean what they say, stopping and going on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from agentflow.errors import RunError, UserError
from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.controls import CONTROLS, sender_alone, vary, without_message
from agentflow.evaluation.probe import AnswerProbe, divergence
from agentflow.evaluation.rows import Arm, Row
from agentflow.models.pool import EnginePool
from agentflow.workflow.loader import parse_workflow
from tests.adapters.samples import bundle_of
from tests.evaluation.conftest import WORKFLOW
from tests.tiny import tiny_engine

ALL = CompareOptions(controls=tuple(CONTROLS))


def run(workflow, task, engines, n=3, channels=("text", "cache"), options=ALL, **more):
    items = task.items(data=None, limit=n, seed=0)
    return compare(workflow, task, items, channels, engines, options=options, **more)


def test_every_item_has_a_row_for_every_arm(workflow, task, engines):
    found = run(workflow, task, engines)
    names = [arm.name for arm in found.arms]
    assert names == [
        "text", "cache", "no message", "sender alone", "mismatched(text)", "mismatched(cache)", "zero(cache)",
        "equal seconds(cache)",
    ]  # fmt: skip
    for name in names:
        assert [row.item for row in found.of(name)] == list(found.items)
        assert all(not row.error for row in found.of(name))


def test_text_and_cache_are_equal_and_the_cache_prefills_less(workflow, task, engines):
    found = run(workflow, task, engines)
    for text, cache in zip(found.of("text"), found.of("cache"), strict=True):
        assert cache.answers == text.answers
        assert cache.nll == pytest.approx(text.nll, abs=1e-4)
        assert cache.kl == pytest.approx(0.0, abs=1e-5)
        assert text.kl is None  # it is what the others diverge from
        assert cache.prefilled + cache.reused == text.prefilled
        assert cache.bytes > text.bytes


def test_controls_change_what_they_say(workflow, task, engines):
    found = run(workflow, task, engines)
    first = {arm.name: found.of(arm.name)[0] for arm in found.arms}
    assert first["no message"].bytes == 0
    assert first["no message"].kl > 0.001
    assert first["zero(cache)"].kl > 0.001
    assert first["mismatched(cache)"].nll == pytest.approx(first["mismatched(text)"].nll, abs=1e-4)
    assert first["mismatched(cache)"].kl > 0.001
    assert first["zero(cache)"].bytes == first["cache"].bytes


def test_a_mismatched_item_gets_the_message_of_the_next_one(workflow, task, engines):
    items = task.items(data=None, limit=2, seed=0)
    found = compare(workflow, task, items, ["text"], engines, options=ALL)
    others = [{**a.inputs, "facts": b.inputs["facts"]} for a, b in zip(items, items[::-1], strict=True)]
    swapped = [replace(item, inputs=inputs) for item, inputs in zip(items, others, strict=True)]
    direct = compare(workflow, task, swapped, ["text"], engines, options=CompareOptions())
    assert [r.answers for r in found.of("mismatched(text)")] == [r.answers for r in direct.of("text")]
    assert found.of("mismatched(text)")[0].nll == pytest.approx(direct.of("text")[0].nll, abs=1e-5)


def test_a_sender_turn_is_computed_once_for_all_arms(workflow, task, engines, monkeypatch):
    from agentflow.models.engine import Engine

    sizes = []
    original = Engine.generate

    def counted(self, requests):
        sizes.extend(r.max_new_tokens for r in requests)
        return original(self, requests)

    monkeypatch.setattr(Engine, "generate", counted)
    run(
        workflow, task, engines, n=1, channels=("text", "cache", {"name": "cache", "bits": 4}), options=CompareOptions()
    )
    assert sizes.count(0) == 1


def test_a_stopped_comparison_goes_on_where_it_was(workflow, task, engines, tmp_path):
    options = CompareOptions(controls=("no message",), out=tmp_path / "out")

    class StopError(Exception):
        pass

    def stop(comparison):
        if len(comparison.of("text")) == 2:
            raise StopError

    with pytest.raises(StopError):
        run(workflow, task, engines, options=options, shown=stop)
    file = tmp_path / "out" / "rows.jsonl"
    lines = file.read_text().splitlines()
    assert len(lines) == 2 * 3
    file.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])  # killed while a row was written
    asked = []
    pool = EnginePool(factory=lambda spec: asked.append(spec) or tiny_engine())
    whole = run(workflow, task, pool, options=options)
    assert [json.loads(line)["item"] for line in file.read_text().splitlines()[:5]] == [
        json.loads(line)["item"] for line in lines[:5]
    ]
    undisturbed = run(workflow, task, engines, options=CompareOptions(controls=("no message",)))
    assert [(r.item, r.arm, r.answers) for r in whole.rows] == [(r.item, r.arm, r.answers) for r in undisturbed.rows]
    again = run(workflow, task, engines, options=options, shown=lambda c: pytest.fail("nothing was missing"))
    assert [r.to_json() for r in again.rows] == [r.to_json() for r in whole.rows]


def test_arms_may_be_added_to_a_comparison_but_items_may_not_differ(workflow, task, engines, tmp_path):
    options = CompareOptions(out=tmp_path / "out")
    run(workflow, task, engines, options=options, channels=("text",))
    more = run(workflow, task, engines, options=options)
    assert {r.arm for r in more.rows} == {"text", "cache"}
    with pytest.raises(RunError, match="another comparison: its items"):
        run(workflow, task, engines, n=2, options=options)
    with pytest.raises(RunError, match="its seed differ"):
        run(workflow, task, engines, options=CompareOptions(out=tmp_path / "out", seed=1))


def test_two_processes_cannot_compare_into_one_folder(workflow, task, engines, tmp_path):
    options = CompareOptions(out=tmp_path / "out")

    def second(_comparison):
        with pytest.raises(RunError, match="Another process"):
            run(workflow, task, engines, options=options)

    run(workflow, task, engines, n=1, options=options, shown=second)


def test_an_item_that_fails_is_a_row_with_its_error(workflow, task, engines):
    items = task.items(data=None, limit=2, seed=0)
    items[0].inputs["facts"] = ["word " * 700]
    found = compare(workflow, task, items, ["text", "cache"], engines, options=CompareOptions())
    bad, good = found.of("cache")
    assert "more than the 512 positions" in bad.error
    assert bad.scores == {}
    assert not good.error


def test_a_control_that_a_workflow_does_not_allow_says_why(task, engines):
    quoting = parse_workflow(WORKFLOW.replace('prompt: "{{ q }}"', 'prompt: "{{ nodes.read.text }} {{ q }}"'))
    found = run(quoting, task, engines, n=1)
    assert "quotes 'read'" in found.of("no message")[0].error


def test_without_items_or_an_answer_node_nothing_is_compared(workflow, task, engines):
    with pytest.raises(UserError, match="no items"):
        compare(workflow, task, [], ["text"], engines)
    bare = parse_workflow(
        WORKFLOW.replace("task: {name: private_facts, answer: answer, level: easy, questions: 2}", "")
    )
    with pytest.raises(UserError, match="which node's answer counts"):
        run(bare, task, engines)


def test_the_workflows_of_controls(workflow):
    alone = without_message(workflow)
    assert list(alone.nodes) == ["answer"]
    assert alone.edges == ()
    own = sender_alone(workflow)
    assert own.nodes["answer"].agent == "reader"
    assert {e.channel.name for e in own.edges} == {"text"}


def test_divergence_is_zero_for_itself_and_matches_torch():
    torch.manual_seed(0)
    p, q = torch.randn(3, 7).log_softmax(-1), torch.randn(3, 7).log_softmax(-1)
    assert divergence(p, p) == 0.0
    wanted = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1).mean()
    assert divergence(p, q) == pytest.approx(float(wanted), abs=1e-6)


def test_a_probe_of_another_node_scores_nothing():
    probe = AnswerProbe("elsewhere", ["x"])
    assert probe.nll is None
    assert probe.kl is None


def test_a_control_may_be_asked_for_one_channel_alone(workflow, task, engines):
    found = run(workflow, task, engines, n=1, options=CompareOptions(controls=("mismatched(cache)", "zero")))
    assert [arm.name for arm in found.arms if arm.kind == "control"] == ["mismatched(cache)", "zero(cache)"]


def test_fewer_arms_than_before_leave_the_other_rows_in_the_file(workflow, task, engines, tmp_path):
    run(workflow, task, engines, n=1, options=CompareOptions(out=tmp_path / "o"))
    fewer = run(workflow, task, engines, n=1, channels=("text",), options=CompareOptions(out=tmp_path / "o"))
    assert {row.arm for row in fewer.rows} == {"text"}
    assert len((tmp_path / "o" / "rows.jsonl").read_text().splitlines()) == 2


def test_one_item_alone_has_no_mismatched_message(workflow, task, engines):
    found = run(workflow, task, engines, n=1, options=CompareOptions(controls=("mismatched",)))
    row = found.of("mismatched(cache)")[0]
    assert row.impossible
    assert "no other item" in row.error


def test_another_item_with_the_same_message_is_no_stranger(workflow, task, engines):
    one, other = task.items(data=None, limit=2, seed=0)
    twin = replace(one, id="twin")
    found = compare(workflow, task, [one, twin, other], ["text"], engines, options=ALL)
    mismatched = found.of("mismatched(text)")
    assert mismatched[0].nll == pytest.approx(mismatched[1].nll, abs=1e-6)  # both have that of the third one
    assert mismatched[0].nll != pytest.approx(found.of("text")[0].nll, abs=1e-3)
    alone = compare(workflow, task, [one, twin], ["text"], engines, options=ALL)
    assert all(row.impossible for row in alone.of("mismatched(text)"))


def test_text_of_equal_size_is_no_larger_than_what_it_is_equal_to(workflow, task, engines):
    briefing = {"name": "latent_briefing", "threshold": "ratio", "ratio": 0.5, "least": 1, "sinks": 4}
    options = CompareOptions(controls=("equal bytes", "equal positions", "equal seconds"))
    found = run(workflow, task, engines, n=2, channels=("text", briefing), options=options)
    by_kind = {arm.control: found.of(arm.name) for arm in found.arms if arm.control}
    channel, text = found.of(found.arms[1].name), found.of("text")
    for ours, whole, chosen in zip(channel, text, by_kind["equal positions"], strict=True):
        assert not chosen.error
        assert chosen.prefilled <= ours.prefilled + ours.reused + 2
        assert chosen.bytes < whole.bytes
    assert all(not row.error for row in by_kind["equal seconds"])
    for ours, cut, whole in zip(channel, by_kind["equal bytes"], text, strict=True):
        assert cut.bytes == min(ours.bytes, whole.bytes)


@pytest.mark.parametrize("control", ["equal bytes", "equal positions"])
def test_nothing_is_equal_to_what_did_not_finish(workflow, control):
    arm = Arm(f"{control}(cache)", "control", "cache", control=control)
    for row in (None, Row("1", "cache", error="failed"), Row("1", "cache")):
        with pytest.raises(UserError, match="did not finish this item"):
            vary(arm, workflow, {}, {}, (), row)


def test_what_is_equal_to_a_channel_is_tried_again_with_it(workflow, task, engines, tmp_path, monkeypatch):
    from agentflow.channels.latent_briefing import LatentBriefingChannel

    options = CompareOptions(controls=("equal bytes",), out=tmp_path / "out")
    with monkeypatch.context() as broken:
        broken.setattr(LatentBriefingChannel, "send", lambda *_: (_ for _ in ()).throw(UserError("not today")))
        first = run(workflow, task, engines, n=1, channels=("text", "latent_briefing"), options=options)
    assert [bool(row.error) for row in first.rows] == [False, True, True]
    assert not any(row.impossible for row in first.rows)
    again = run(workflow, task, engines, n=1, channels=("text", "latent_briefing"), options=options)
    assert not any(row.error for row in again.rows)


def test_text_of_equal_seconds_needs_text_to_know_its_speed(workflow, task, engines):
    found = run(workflow, task, engines, n=1, channels=("cache",), options=CompareOptions(controls=("equal seconds",)))
    assert "its speed is not known" in found.of("equal seconds(cache)")[0].error


TWO_MODELS = (
    WORKFLOW.replace(
        "tests/tiny, model: tiny}, system: answer", "tests/tiny-qwen2-0, model: tiny-qwen2-0}, system: answer"
    )
    .replace("tests/tiny, model: tiny}", "tests/tiny-llama-0, model: tiny-llama-0}")
    .replace("channel: cache", "channel: c2c")
)


@pytest.mark.parametrize("has_self", [False, True])
def test_a_trained_channel_has_zeros_and_the_receiver_fused_with_itself_as_controls(
    task, tmp_path, monkeypatch, has_self
):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    receiver = tiny_engine("qwen2")
    bundle_of(tmp_path / "adapters" / "pair", tiny_engine(), receiver)
    if has_self:
        bundle_of(tmp_path / "adapters" / "self", receiver, receiver)
    families = {"tiny-llama-0": "llama", "tiny-qwen2-0": "qwen2"}
    engines = EnginePool(factory=lambda spec: tiny_engine(families[spec.model]))
    found = run(parse_workflow(TWO_MODELS), task, engines, n=2, channels=("text", "c2c"))
    first = {arm.name: found.of(arm.name)[0] for arm in found.arms}
    assert {"zero(c2c)", "self(c2c)", "mismatched(c2c)"} <= first.keys()
    assert "self(text)" not in first
    assert first["zero(c2c)"].nll != pytest.approx(first["c2c"].nll, abs=1e-3)
    assert first["zero(c2c)"].bytes == first["c2c"].bytes
    # The receiver computes the conversation in every arm, whatever another one has computed before.
    assert first["zero(c2c)"].prefilled == first["c2c"].prefilled
    if has_self:
        assert first["self(c2c)"].nll != pytest.approx(first["c2c"].nll, abs=1e-3)
    else:
        assert first["self(c2c)"].impossible
        assert "can't be fused with itself: there is no bundle of 'c2c'" in first["self(c2c)"].error


def test_rows_of_an_adapter_that_was_trained_anew_are_computed_again(task, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    families = {"tiny-llama-0": "llama", "tiny-qwen2-0": "qwen2"}
    engines = EnginePool(factory=lambda spec: tiny_engine(families[spec.model]))
    workflow = parse_workflow(TWO_MODELS)
    options = CompareOptions(controls=("zero", "no message"), out=tmp_path / "out")

    def compared(scale):
        bundle_of(tmp_path / "adapters" / "pair", tiny_engine(), tiny_engine("qwen2"), scale=scale)
        return run(workflow, task, engines, n=1, channels=("text", "c2c"), options=options)

    first, same, other = compared(0.1), compared(0.1), compared(0.2)
    assert same.rows == first.rows
    changed = {old.arm for old, new in zip(first.rows, other.rows, strict=True) if old != new}
    assert changed == {"c2c", "zero(c2c)"}
    assert other.of("c2c")[0].nll != pytest.approx(first.of("c2c")[0].nll, abs=1e-4)
