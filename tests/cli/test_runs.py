"""Stored runs from the command line: resuming, looking, exporting, removing."""

from __future__ import annotations

import json

import pytest

from agentflow.runtime.runs import RunStore, read_manifest
from agentflow.runtime.scheduler import Unit
from tests.cli.conftest import FACTS, QUESTION
from tests.stored import lines, lose


@pytest.fixture
def run(cli, place):
    """A finished run over two items: its folder and its answers."""
    ended = cli("run", "facts.yaml", "-n", "2", "--json")
    assert ended.code == 0, ended.err
    return place / ended.json["run"], [i["answers"] for i in ended.json["items"]]


@pytest.mark.parametrize("way", ["runs resume {}", "run facts.yaml --resume {}", "runs resume last"])
def test_a_run_goes_on_with_what_is_missing_and_leaves_the_rest(cli, run, way):
    folder, answers = run
    before = lines(folder)
    gone = sorted((unit for unit in before if unit.node == "answer"), key=str)[1]
    lose(folder, lambda unit: unit == gone)
    (folder / "outcome.json").unlink()
    ended = cli(*way.format(folder.name).split(), "--json")
    assert ended.code == 0, ended.err
    assert [i["answers"] for i in ended.json["items"]] == answers
    after = lines(folder)
    assert after.keys() == before.keys()
    assert {unit for unit in after if after[unit] != before[unit]} <= {gone}
    kinds = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert kinds[kinds.index("run_finished") + 1 :].count("node_finished") == 1


def test_a_run_on_inputs_keeps_them(cli, place):
    first = cli("run", "question.yaml", "--input", "question=who", "--json").json
    lose(place / first["run"], lambda unit: unit.node == "one")
    again = cli("runs", "resume", first["run"], "--json")
    assert again.json["outputs"] == first["outputs"]
    assert again.json["run"] == first["run"]


def test_a_failed_run_says_how_to_go_on_and_a_mended_workflow_does(cli, place):
    (place / "bad.yaml").write_text(FACTS.replace("{{ question }}", "{{ question.missing }}"))
    ended = cli("run", "bad.yaml", "-n", "1")
    (folder,) = (place / "runs").iterdir()
    assert ended.code == 1
    assert f"go on with: agentflow runs resume runs/{folder.name}" in ended.err
    (place / "bad.yaml").write_text(FACTS)
    ended = cli("runs", "resume", "last")
    assert ended.code == 0, ended.err
    shown = cli("runs", "show", "last", "--json").json
    assert shown["state"] == "done"
    assert shown["nodes"]["read"]["states"] == {"done": 1}
    assert shown["nodes"]["answer"]["states"] == {"done": 2}


def test_force_runs_a_node_again(cli, run):
    folder, _ = run
    assert cli("runs", "resume", "last", "--force", "read").code == 0
    kinds = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert kinds[kinds.index("run_finished") + 1 :].count("node_finished") == 2  # of two items
    ended = cli("runs", "resume", "last", "--force", "raed")
    assert ended.code == 2
    assert "Did you mean 'read'?" in ended.err


def test_until_leaves_the_rest_to_a_resumed_run(cli, place):
    ended = cli("run", "facts.yaml", "-n", "2", "--until", "read", "--json")
    assert ended.code == 0, ended.err
    assert set(ended.json["nodes"]) == {"read"}
    shown = cli("runs", "show", "last").out
    assert "answer · not begun" in shown
    ended = cli("runs", "resume", "last", "--json")
    assert ended.code == 0, ended.err
    assert all(any(i["answers"]) for i in ended.json["items"])


def test_fail_fast_starts_nothing_after_a_failure(cli, place):
    (place / "bad.yaml").write_text(FACTS.replace("{{ question }}", "{{ question.missing }}"))
    ended = cli("run", "bad.yaml", "-n", "5", "--batch", "1", "--fail-fast")
    assert ended.code == 1
    read = cli("runs", "show", "last", "--json").json["nodes"]["read"]["states"]
    assert read["done"] < 5


def test_what_a_workflow_leaves_out_is_said_and_is_no_failure(cli, place):
    (place / "when.yaml").write_text(QUESTION.replace("agent: a,", "agent: a, when: \"inputs.question == 'so'\","))
    ended = cli("run", "when.yaml", "--input", "question=who")
    assert ended.code == 0
    assert "one: skipped, when: inputs.question == 'so'" in ended.err
    assert "one · skipped · when: inputs.question" in cli("runs", "show", "last").out


def test_a_run_of_another_workflow_or_with_other_data_is_refused(cli, run, place):
    ended = cli("run", "question.yaml", "--resume", "last")
    assert ended.code == 2
    assert "is one of 'facts', not of 'question'" in ended.err
    folder, _ = run
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "items": ["another"]}))
    ended = cli("runs", "resume", "last")
    assert ended.code == 2
    assert "gives other items now" in ended.err


def test_what_another_process_is_at_work_on_is_neither_resumed_nor_removed(cli, run):
    folder, _ = run
    store = RunStore.open(folder)
    try:
        for line in ("runs resume last", "runs rm last"):
            ended = cli(*line.split())
            assert ended.code == 2
            assert "Another process is at work on this run" in ended.err
        assert cli("runs", "list", "--json").json[0]["state"] == "running"
    finally:
        store.close()
    assert cli("runs", "list", "--json").json[0]["state"] == "stopped"  # begun again, and never ended


def test_runs_are_listed_the_newest_first(cli, run, place):
    cli("run", "question.yaml", "--input", "question=who")
    listed = cli("runs", "list", "--json").json
    assert [(r["workflow"], r["state"], r["items"], r["finished"], r["results"]) for r in listed] in (
        [("question", "done", 1, 1, 1), ("facts", "done", 2, 2, 6)],
        [("facts", "done", 2, 2, 6), ("question", "done", 1, 1, 1)],  # made in the same second
    )
    assert "6" in cli("runs", "list").out
    assert "no runs in elsewhere" in cli("runs", "list", "--runs", "elsewhere").out


def test_a_run_is_shown_as_a_tree_with_its_children_folded(cli, run):
    lines = cli("runs", "show", "last").out.splitlines()
    assert lines[0].endswith(": done, 2 of 2 items finished")
    assert lines[1].startswith("read · 2 done · prefilled ")
    assert lines[2].startswith("└─ cache → answer · 4 done · prefilled ")
    (item, *_) = cli("runs", "show", "last", "--json").json["items"]
    assert "answer · 2 done" in cli("runs", "show", "last", "--item", item).out
    assert cli("runs", "show", "last", "--item", "nobody").code == 2


def test_what_a_model_says_does_not_reach_the_terminal_through_show(cli, place):
    (place / "bad.yaml").write_text(QUESTION.replace("{{ inputs.question }}", "{{ inputs.question['\\e[31m'] }}"))
    assert cli("run", "bad.yaml", "--input", "question=who").code == 1
    shown = cli("runs", "show", "last").out
    assert "one · failed" in shown
    assert "\x1b" not in shown


def test_an_export_is_one_document_of_everything_but_payloads(cli, run, place):
    document = cli("runs", "export", "last").json
    assert document["run"]["workflow"] == "facts"
    assert len(document["results"]) == 6
    assert all(set(r) >= {"item", "node", "child", "result"} for r in document["results"])
    assert cli("runs", "export", "last", "--out", "run.json").code == 0
    spans = cli("runs", "export", "last", "--format", "otlp-json").json["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert spans[0]["name"].startswith("invoke_workflow ")
    assert any(span["name"].startswith("chat ") for span in spans)
    assert json.loads((place / "run.json").read_text()) == document
    assert cli("runs", "export", "last", "--out", "facts.yaml/x").code == 2


def test_removed_runs_are_gone_and_nothing_else_is(cli, run, place):
    folder, _ = run
    assert cli("runs", "rm", "last", "gone").code == 2  # one is not there: none is removed
    assert folder.exists()
    (place / "runs" / "mine").mkdir()
    assert cli("runs", "rm", "mine").code == 2
    assert cli("runs", "rm", folder.name, "--json").json["removed"]
    assert not folder.exists()
    assert (place / "runs" / "mine").exists()


def test_a_dry_run_loads_no_model_writes_nothing_and_says_why(cli, run, place, monkeypatch):
    folder, _ = run
    gone = Unit(read_manifest(folder)["items"][0], "answer", 1)
    lose(folder, lambda unit: unit == gone)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("agentflow.cli.going.loader", None)  # would fail
    lines = cli("runs", "resume", "last", "--dry-run").out.splitlines()
    assert lines[0] == f"{folder.name}: 2 items; 5 done, 1 runs"
    assert lines[1:] == ["read · 2 done", "└─ cache → answer · 3 done, 1 runs (no result yet)"]
    found = cli("run", "facts.yaml", "--resume", "last", "--force", "read", "--dry-run", "--json").json
    assert found["units"] == {"runs": 3, "depends": 3}
    assert found["nodes"]["read"] == {"runs": {"units": 2, "because": ["forced"]}}
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    new = cli("run", "facts.yaml", "-n", "3", "--dry-run", "--until", "read").out.splitlines()
    assert new[0] == "facts: 3 items; 3 runs, 3 not asked for"
    assert len(list((place / "runs").iterdir())) == 1


def test_a_dry_run_refuses_what_the_run_itself_would_refuse(cli, run):
    folder, _ = run
    manifest = read_manifest(folder)
    (folder / "run.json").write_text(json.dumps({**manifest, "form": 0}))
    ended = cli("runs", "resume", "last", "--dry-run")
    assert ended.code == 2
    assert "another version" in ended.err
