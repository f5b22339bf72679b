"""Whole runs through the command line, on a tiny model that is loaded from a folder like any other."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cli.conftest import FACTS, files_below


def test_text_and_cache_give_the_same_answers_and_the_cache_prefills_less(cli, place):
    ended = cli("compare", "facts.yaml", "-n", "2", "--json")
    assert ended.code == 0, ended.err
    rows = ended.json["comparison"]["rows"]
    text, cache = ([r for r in rows if r["arm"] == arm] for arm in ("text", "cache"))
    assert [r["answers"] for r in text] == [r["answers"] for r in cache]
    assert all(any(r["answers"]) for r in text)
    assert all(r["reused"] == 0 for r in text), "a comparison must not profit from what another channel computed"
    assert [r["prefilled"] + r["reused"] for r in cache] == [r["prefilled"] for r in text]
    (folder,) = (place / "runs" / "compare").iterdir()
    assert {p.name for p in folder.iterdir()} >= {"report.html", "report.md", "report.json", "rows.jsonl"}


def test_a_comparison_that_is_given_again_computes_nothing_and_reports_the_same(cli, place):
    first = cli("compare", "facts.yaml", "-n", "2", "--out", "mine", "--controls", "none", "--json")
    rows = (place / "mine" / "rows.jsonl").read_text()
    again = cli("compare", "facts.yaml", "-n", "2", "--out", "mine", "--controls", "none", "--json")
    assert again.code == 0, again.err
    assert (place / "mine" / "rows.jsonl").read_text() == rows
    assert again.json["summary"] == first.json["summary"]
    other = cli("compare", "facts.yaml", "-n", "3", "--out", "mine", "--controls", "none")
    assert other.code == 2
    assert "holds another comparison" in other.err


def test_a_run_over_a_task_prints_its_scores_and_where_it_is_stored(cli, place):
    ended = cli("run", "facts.yaml", "-n", "2")
    assert ended.code == 0, ended.err
    assert "facts: 2 items, seed 0" in ended.out
    assert "exact" in ended.out
    (run,) = (place / "runs").iterdir()
    assert f"stored in runs/{run.name}" in ended.err
    assert {"events.jsonl", "run.json"} <= files_below(run)
    assert not [name for name in files_below(place) if name.endswith(".part")]


def test_turns_prepared_ahead_change_no_answer(cli):
    on, off = (cli("run", "facts.yaml", "-n", "3", "--batch", "2", "--overlap", how, "--json") for how in ("on", "off"))
    assert on.code == 0, on.err
    assert [i["answers"] for i in on.json["items"]] == [i["answers"] for i in off.json["items"]]


def test_a_run_on_inputs_prints_the_outputs_alone_on_standard_output(cli):
    ended = cli("run", "question.yaml", "--input", "question=who", "--json")
    assert ended.code == 0, ended.err
    assert set(ended.json["outputs"]) == {"answer"}
    assert "one: " in ended.err


@pytest.mark.parametrize("value", ["42", "true", '{"a": 1}', "[red]x[/red]"])
def test_an_input_that_is_text_is_taken_as_it_stands(cli, place, value):
    ended = cli("run", "question.yaml", "--input", f"question={value}", "--json")
    assert ended.code == 0, ended.err
    manifest = json.loads((place / ended.json["run"] / "run.json").read_text())
    assert manifest["inputs"] == {"question": value}


def test_pairs_win_over_the_inputs_file_and_lists_are_read_as_json(cli, place):
    (place / "in.json").write_text(json.dumps({"facts": ["a"], "questions": ["b"]}))
    ended = cli("run", "facts.yaml", "--inputs", "in.json", "--input", 'questions=["c", "d"]', "--json")
    assert ended.code == 0, ended.err
    assert len(ended.json["outputs"]["answers"]) == 2


def test_equal_seeds_give_equal_answers(cli):
    one, two = (cli("run", "facts.yaml", "-n", "1", "--seed", "3", "--json").json for _ in range(2))
    assert one["items"][0]["answers"] == two["items"][0]["answers"]


def test_a_failing_node_is_exit_code_1_and_json_without_nan(cli, place):
    (place / "bad.yaml").write_text(FACTS.replace("inputs.facts | join(' ')", "inputs.facts[0].nothing.here"))
    ended = cli("run", "bad.yaml", "-n", "2", "--json")
    assert ended.code == 1
    assert ended.json["prefilled"] is None
    assert all(item["error"] for item in ended.json["items"])


def test_failures_are_told_below_the_table(cli, place):
    (place / "bad.yaml").write_text(FACTS.replace("inputs.facts | join(' ')", "inputs.facts[0].nothing.here"))
    ended = cli("run", "bad.yaml", "-n", "7")
    assert ended.code == 1
    assert "nan" not in ended.out
    assert ended.err.count("failed private") + ended.err.count("failed cache, ") == 5
    assert "2 more items" in ended.err


def test_kept_payloads_can_be_inspected_and_checked(cli, place):
    (place / "key").write_text("shared")
    ended = cli("run", "facts.yaml", "-n", "1", "--keep-payloads", "--key-file", "key")
    assert ended.code == 0, ended.err
    payload = next((place / "runs").rglob("*.safetensors"))
    ended = cli("payload", "inspect", payload, "--key-file", "key", "--for", "tiny", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["header"]["sender"] == "read"
    assert ended.json["fits"] == "tiny"
    assert cli("payload", "inspect", payload).out.count("\n") > 8


@pytest.mark.parametrize(
    "line",
    [
        "models list --json",
        "models show tiny --fetch --json",
        "channels --json",
        "channels text --json",
        "doctor --json",
    ],
)
def test_json_is_all_there_is_on_standard_output(cli, line):
    ended = cli(*line.split())
    assert ended.code == 0, ended.err
    assert ended.json


@pytest.mark.parametrize("line", ["models list", "models show tiny --fetch", "channels", "doctor", "graph facts.yaml"])
def test_every_list_prints_something_for_people(cli, line):
    ended = cli(*line.split())
    assert ended.code == 0, ended.err
    assert ended.out.strip()


def test_a_broken_plug_in_does_not_hide_the_other_channels(cli, monkeypatch):
    from agentflow.channels import registry

    monkeypatch.setattr(registry, "channel_names", lambda: ["text", "[b]gone"])
    ended = cli("channels")
    assert ended.code == 0
    assert "text" in ended.out
    assert "[b]gone" in ended.err


def test_a_run_takes_a_channel_with_settings_and_is_resumed_on_it(cli, place):
    ended = cli("run", "facts.yaml", "-n", "1", "--channel", "{name: cache, bits: 4}", "--json")
    assert ended.code == 0, ended.err
    plain = cli("run", "facts.yaml", "-n", "1", "--channel", "cache", "--json")
    assert 0 < ended.json["bytes"] < plain.json["bytes"]
    again = cli("runs", "resume", ended.json["run"], "--json")
    assert again.code == 0, again.err
    assert again.json["bytes"] == ended.json["bytes"]


def test_a_run_of_another_version_is_not_resumed_whatever_its_manifest_lacks(cli, place):
    (place / "runs" / "old").mkdir(parents=True)
    (place / "runs" / "old" / "run.json").write_text('{"form": 0}')
    for command in (("runs", "resume", "old"), ("run", "facts.yaml", "--resume", "old")):
        ended = cli(*command)
        assert ended.code == 2, ended.err
        assert "stored by another version" in ended.err


def test_calibrate_writes_weights_that_a_briefing_takes(cli, place):
    ended = cli("calibrate", "tiny", "-n", "2", "--heads", "3", "--out", "heads.json", "--json")
    assert ended.code == 0, ended.err
    assert len(ended.json["heads"]) == 3
    channel = "{name: latent_briefing, head_weights: heads.json, least: 1}"
    used = cli("compare", "facts.yaml", "-n", "1", "--channels", f"text,{channel}", "--controls", "none")
    assert used.code == 0, used.err
    for arguments, what in (
        (("--heads", "999"), "999 heads can't be chosen"),
        (("--out", "no/h.json"), "no such folder"),
    ):
        wrong = cli("calibrate", "tiny", "-n", "1", *arguments)
        assert wrong.code == 2
        assert what in wrong.err


def test_a_cache_folder_that_is_a_file_is_no_bug(cli, place, monkeypatch):
    (place / "file").write_text("")
    monkeypatch.setenv("AGENTFLOW_CACHE", str(place / "file"))
    ended = cli("run", "question.yaml", "--input", "question=a")
    assert ended.code == 2
    assert "Not a directory" in ended.err
    assert not (place / "runs").exists()


@pytest.mark.real
def test_the_embedded_model_answers_alike_over_text_and_cache(tmp_path, monkeypatch, capsys):
    from agentflow.cli.main import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["compare", "private_facts", "-n", "1", "--channels", "text,cache", "--controls", "no message", "--json"])
    captured = capsys.readouterr()
    assert end.value.code == 0, captured.err
    rows = {row["arm"]: row for row in json.loads(captured.out)["comparison"]["rows"]}
    assert rows["text"]["answers"] == rows["cache"]["answers"]
    assert rows["cache"]["scores"]["contains"] == 1.0
    assert rows["no message"]["scores"]["contains"] == 0.0
    assert rows["no message"]["nll"] > rows["cache"]["nll"] + 0.5


def test_a_run_is_told_as_spans_where_it_is_asked_for(cli, place, monkeypatch):
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed (extra `otel`)")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    ended = cli("run", "question.yaml", "--input", "question=who", "--otel", "--json")
    assert ended.json["outputs"]
    assert "invoke_workflow question" in ended.err
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "smoke")
    ended = cli("run", "question.yaml", "--input", "question=who", "--otel")
    assert ended.code == 2
    assert "no exporter 'smoke'" in ended.err
    assert len(list((place / "runs").iterdir())) == 1


def test_an_executor_that_is_not_installed_is_told_before_anything_is_loaded(cli, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = cli("run", "question.yaml", "--input", "question=Where?", "--executor", "ray")
    assert (ended.code, "pip install 'agentflow-kv[ray]'" in ended.err) == (2, True)
    assert not (place / "runs").exists()
