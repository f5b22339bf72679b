"""Resuming: what is finished stays as it is, what is missing runs, and the end is that of an uninterrupted run."""

from __future__ import annotations

import json
import random

import pytest

from agentflow.errors import RunError
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.kept import FILE, read_results
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.rehearsal import rehearse
from agentflow.runtime.runs import RunStore, read_events
from agentflow.runtime.scheduler import Unit
from tests.stored import lines, lose
from tests.tiny import make_engine, tiny_model

CHAIN = """
workflow: chain
inputs: {facts: list, questions: list}
agents:
  reader: {model: MODEL, system: remember}
  worker: {model: MODEL, system: answer}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 4}
  ask: {agent: worker, map: {over: inputs.questions, as: q}, prompt: "{{ index }} {{ q }}", max_new_tokens: 5}
  note: {agent: worker, prompt: "note", max_new_tokens: 5, temperature: 0.8}
  sum: {agent: worker, prompt: "sum up {{ nodes.note.text }}", max_new_tokens: 5}
  last: {agent: worker, prompt: "and so", max_new_tokens: 6}
edges:
  - {from: read, to: ask, channel: ONE}
  - {from: read, to: note, channel: ONE}
  - {from: ask, to: sum, channel: TWO}
  - {from: note, to: sum, channel: TWO}
  - {from: sum, to: last, channel: cache}
outputs: {answers: "{{ nodes.ask.texts }}", last: "{{ nodes.last.text }}"}
"""
INPUTS = {"facts": ["the code is seven", "red is blue"], "questions": ["what code", "what is red", "who"]}
ITEMS = [("one", INPUTS), ("two", {**INPUTS, "facts": ["green is red"]})]


@pytest.fixture
def chain(flow):
    return lambda one="cache", two="cache", text=CHAIN: flow(text.replace("ONE", one).replace("TWO", two))


def go(workflow, engines, store, **more):
    events = []
    runner = Orchestrator(bind(workflow), engines, store=store, listeners=[events.append], **more)
    results = runner.run(ITEMS)
    ran = [(e.item, e.node, e.child) for e in events if e.kind == "node_finished"]
    reused = [(e.item, e.node, e.child) for e in events if e.kind == "node_reused"]
    assert not set(ran) & set(reused)
    return results, ran, reused


def fresh():
    """Engines without a memory of earlier runs, as another process has."""
    engine = make_engine(tiny_model("llama"), "tiny-llama-0")
    return EnginePool(factory=lambda spec: engine)


def foreseen(workflow, folder, **more):
    """What a dry run says of the units: verdicts, and the reasons of those that would run."""
    stored = read_results(folder)
    found = rehearse(bind(workflow), ITEMS, seed=0, stored=stored, **more)
    return {(f.unit.item, f.unit.node, f.unit.child): f for f in found}


def assert_foretold(told, ran, reused):
    """What was said to run has run, and what was said to be done has not."""
    runs = {unit for unit, f in told.items() if f.verdict == "runs"}
    done = {unit for unit, f in told.items() if f.verdict == "done"}
    assert runs <= set(ran)
    assert done <= set(reused)
    assert set(ran) | set(reused) == set(told)


def said(results):
    return [{node: [r.text for r in rs] for node, rs in result.nodes.items()} for result in results]


@pytest.fixture
def whole(chain, tmp_path):
    """A finished run over two items: its folder, and what was said."""

    def run(workflow, **more):
        store = RunStore.create(tmp_path, "chain", {})
        results, ran, _ = go(workflow, fresh(), store, **more)
        assert len(ran) == 14
        assert not any(r.errors for r in results)
        return store.folder, said(results)

    return run


def test_a_finished_run_runs_nothing_again(chain, whole):
    folder, wanted = whole(chain())
    before = lines(folder)
    results, ran, reused = go(chain(), fresh(), RunStore.open(folder))
    assert (ran, len(reused)) == ([], 14)
    assert said(results) == wanted
    assert lines(folder) == before


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("cache", "cache"),
        ("text", "text"),
        ("{name: cache, bits: 8}", "text"),
        ("{name: latent_briefing, least: 1}", "{name: summary, max_tokens: 4}"),
    ],
)
def test_whatever_is_missing_the_end_is_that_of_an_uninterrupted_run(chain, whole, one, two, reuse):
    workflow = chain(one, two)
    folder, wanted = whole(workflow, options=RunOptions(reuse=reuse))
    rng = random.Random(one + two)
    for _ in range(4):
        # Nothing is finished before its senders are.
        order = ["read", "note", "ask", "sum", "last"]
        gone = set(order[rng.randrange(len(order)) :])
        halves = gone == {"ask", "sum", "last"}
        lose(
            folder,
            lambda unit, g=gone, h=halves: unit.node in g and (unit.node != "ask" or not h or rng.random() < 0.5),
        )
        left = lines(folder)
        told = foreseen(workflow, folder)
        results, ran, reused = go(workflow, fresh(), RunStore.open(folder), options=RunOptions(reuse=reuse))
        assert len(reused) == len(left)
        assert_foretold(told, ran, reused)
        assert len(ran) == 14 - len(left)
        assert said(results) == wanted
        assert {unit: line for unit, line in lines(folder).items() if unit in left} == left


@pytest.mark.parametrize(
    ("change", "nodes"),
    [
        (('note"', 'notes"'), {"note", "sum", "last"}),
        (("system: remember", "system: recall"), {"read", "ask", "note", "sum", "last"}),
        (("max_new_tokens: 6", "max_new_tokens: 7"), {"last"}),
        (("to: sum, channel: TWO}\n  - {from: note", "to: sum, channel: text}\n  - {from: note"), {"sum", "last"}),
        (("{from: read, to: note, channel: ONE}", "{from: read, to: note, channel: {name: cache, bits: 8}}"), None),
        (("  - {from: read, to: note, channel: ONE}\n", ""), {"note", "sum", "last"}),
        (("outputs: {answers", "outputs: {other: x, answers"), set()),
        (("workflow: chain", "workflow: chain\ndescription: another"), set()),
    ],
)
def test_what_is_asked_otherwise_now_runs_again_and_nothing_else(chain, whole, change, nodes):
    folder, _ = whole(chain())
    assert change[0] in CHAIN
    told = foreseen(chain(text=CHAIN.replace(*change)), folder)
    results, ran, reused = go(chain(text=CHAIN.replace(*change)), fresh(), RunStore.open(folder))
    assert not any(r.errors for r in results)
    assert_foretold(told, ran, reused)
    assert bool(nodes or nodes is None) == any(f.because.startswith("asked otherwise now: ") for f in told.values())
    if nodes is None:
        assert {node for _, node, _ in ran} >= {"note"}
        assert not {node for _, node, _ in ran} & {"read", "ask"}
    else:
        assert {node for _, node, _ in ran} == nodes


def test_another_seed_other_weights_or_other_inputs_are_other_questions(chain, whole):
    folder, _ = whole(chain())
    _, ran, _ = go(chain(), fresh(), RunStore.open(folder), options=RunOptions(seed=1))
    assert len(ran) == 14
    other = make_engine(tiny_model("llama", seed=1), "tiny-llama-1")
    _, ran, _ = go(chain(), EnginePool(factory=lambda spec: other), RunStore.open(folder))
    assert len(ran) == 14


def test_a_forced_node_runs_and_what_hears_the_same_from_it_does_not(chain, whole):
    folder, wanted = whole(chain())
    told = foreseen(chain(), folder, forced=["note"])
    assert (told["one", "note", None].verdict, told["one", "note", None].because) == ("runs", "forced")
    assert (told["one", "sum", None].verdict, told["one", "ask", 0].verdict) == ("depends", "done")
    results, ran, _ = go(chain(), fresh(), RunStore.open(folder, forced=["note"]))
    assert {node for _, node, _ in ran} == {"note"}
    assert said(results) == wanted
    lose(folder, lambda unit: unit.node == "last")
    results, ran, _ = go(chain(), fresh(), RunStore.open(folder, forced=["read"]))
    assert {node for _, node, _ in ran} == {"read", "last"}  # `last` needs messages made from those of `read`
    assert said(results) == wanted


def test_kept_payloads_are_read_instead_of_made_again(chain, whole, monkeypatch):
    from agentflow.channels.summary import SummaryChannel

    options = RunOptions(keep_payloads=True, signing_key=b"k")
    workflow = chain("cache", "{name: summary, max_tokens: 4}")
    folder, wanted = whole(workflow, options=options)
    lose(folder, lambda unit: unit.node == "last")
    monkeypatch.setattr(SummaryChannel, "send", None)  # would fail
    results, ran, _ = go(workflow, fresh(), RunStore.open(folder), options=options)
    assert {node for _, node, _ in ran} == {"last"}
    assert said(results) == wanted


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b"[]", b'{"form": 99}'])
def test_a_damaged_result_is_a_missing_one(chain, whole, damage):
    folder, wanted = whole(chain())
    line = lines(folder)[Unit("one", "ask", 1)]
    log = folder / FILE
    log.write_bytes(log.read_bytes().replace(line, damage + b"\n"))
    results, ran, _ = go(chain(), fresh(), RunStore.open(folder))
    assert ran == [("one", "ask", 1)]
    assert said(results) == wanted


def test_a_log_that_was_cut_is_mended_and_goes_on(chain, whole):
    folder, _ = whole(chain())
    log = folder / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    before = len(read_events(folder))
    go(chain(), fresh(), RunStore.open(folder))
    events = read_events(folder)
    assert [e["kind"] for e in events[before : before + 2]] == ["run_started", "node_reused"]
    assert json.loads((folder / "outcome.json").read_text())["state"] == "done"


def test_a_second_one_at_the_same_run_is_refused(chain, whole):
    folder, _ = whole(chain())
    store = RunStore.open(folder)
    with pytest.raises(RunError, match="Another process is at work on this run"):
        RunStore.open(folder)
    store.close()
    RunStore.open(folder).close()


def test_a_run_of_another_version_is_refused(chain, whole):
    folder, _ = whole(chain())
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "form": 0}))
    with pytest.raises(RunError, match="another version"):
        RunStore.open(folder)


def test_items_whose_names_look_alike_as_files_are_kept_apart(tmp_path):
    from agentflow.runtime.runs import safe_name

    names = ["a/b", "a_b", "a b", "é", ".a", "a", "x" * 200, "x" * 201, ""]
    assert len({safe_name(n) for n in names}) == len(names)
    assert safe_name("5a8b57f25542995d1e6f1371") == "5a8b57f25542995d1e6f1371"


def test_prompts_that_look_at_all_nodes_see_their_ancestors_only(flow, engines):
    text = (
        CHAIN.replace("ONE", "text")
        .replace("TWO", "text")
        .replace('"note"', '"{% for n in nodes %}{{ n }};{% endfor %}"')
    )
    shown = {}

    def look(unit, engine, plan, answer):
        shown[unit.node] = plan.turns[-1].content

    Orchestrator(bind(flow(text)), engines, probe=look).run(ITEMS[:1])
    assert shown["note"].endswith("read;")
