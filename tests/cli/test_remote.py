"""Remote models on the command line: reached, run, refused, and the key nowhere but in the request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentflow.models import pacing
from tests import endpoint as served

KEY = "sk-0123456789abcdef"
PLANNED = """\
workflow: planned
inputs: {question: string}
agents:
  planner: {model: planner}
  worker: {model: tiny}
nodes:
  plan: {agent: planner, prompt: "plan: {{ inputs.question }}", max_new_tokens: 40}
  work: {agent: worker, prompt: "{{ inputs.question }}", max_new_tokens: 6}
edges:
  - {from: plan, to: work, channel: latent_briefing}
outputs: {plan: "{{ nodes.plan.text }}", answer: "{{ nodes.work.text }}"}
"""
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "remote_orchestrator"


@pytest.fixture
def server(place, monkeypatch):
    """An endpoint with a config of its own, `planner`, and a workflow on it."""
    monkeypatch.setattr(pacing, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PLANNER_KEY", KEY)
    with served.endpoint() as found:
        remote = {"url": found.url, "name": "m", "key_env": "PLANNER_KEY", "max_retries": 1}
        (place / "configs" / "models").mkdir(parents=True)
        for name in ("planner", "orchestrator"):
            config = {"model": name, "description": "plans", "remote": remote}
            (place / "configs" / "models" / f"{name}.yaml").write_text(json.dumps(config))
        (place / "planned.yaml").write_text(PLANNED)
        found.script = [served.say("look for the key of locker seven in the first document")]
        yield found


def test_a_run_asks_the_endpoint_and_its_folder_holds_no_key(server, cli, place):
    ended = cli("run", "planned.yaml", "--input", "question=where is it?", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["outputs"]["plan"] == "look for the key of locker seven in the first document"
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    files = [path for path in place.rglob("*") if path.is_file() and "tiny" not in path.parts]
    assert [path for path in files if path.suffix in (".json", ".jsonl")]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    shown = cli("runs", "show", "last")
    assert shown.code == 0, shown.err
    assert KEY not in shown.out + ended.out + ended.err


def test_a_failure_is_one_error_without_a_traceback(server, cli):
    server.script = [served.status(401, {"error": {"message": f"\x1b[31mIncorrect key {KEY}"}})]
    ended = cli("run", "planned.yaml", "--input", "question=where?")
    assert ended.code != 0
    assert "gave no answer: 401 Unauthorized: " in ended.err
    assert "Is the key in PLANNER_KEY right?" in ended.err
    assert "Traceback" not in ended.err
    assert KEY not in ended.err
    assert "\x1b[31m" not in ended.err


def test_a_key_that_is_not_set_is_told_before_anything_runs(server, cli, monkeypatch):
    monkeypatch.delenv("PLANNER_KEY")
    ended = cli("run", "planned.yaml", "--input", "question=where?")
    assert ended.code == 2
    assert "PLANNER_KEY is not set" in ended.err
    assert server.asked == []
    assert cli("validate", "planned.yaml").code == 0  # which needs none


def test_models_show_asks_the_endpoint(server, cli):
    shown = cli("models", "show", "planner", "--fetch")
    assert shown.code == 0, shown.err
    assert f"m at {server.url}" in shown.out
    assert "one of 1 model served there" in shown.out
    assert "planner" in cli("models", "list").out
    server.models = ["n"]
    other = cli("models", "show", "planner", "--fetch")
    assert other.code == 2
    assert "serves no model 'm'" in other.err


@pytest.mark.parametrize("arguments", [("calibrate", "planner"), ("models", "derive", "small.yaml")])
def test_what_needs_weights_refuses_a_remote_model(server, cli, place, arguments):
    (place / "small.yaml").write_text("model: small\nteacher: planner\nleave_out: [1]\nsteps: 1\n")
    ended = cli(*arguments)
    assert ended.code == 2
    assert "'planner' is remote" in ended.err


def test_validate_shows_where_a_channel_needs_more_than_words(server, cli, place):
    (place / "planned.yaml").write_text(PLANNED.replace("latent_briefing", "cache"))
    ended = cli("validate", "planned.yaml")
    assert ended.code == 2
    assert "planned.yaml:10:37" in ended.err
    assert "'planner' is remote: it gives its words, and no cache" in " ".join(ended.err.split())
    assert "latent_briefing, text" in " ".join(ended.err.split())


def test_a_wrong_setting_of_a_config_is_shown_at_its_place(server, cli, place):
    (place / "configs" / "models" / "planner.yaml").write_text(
        "model: planner\nremote:\n  url: http://127.0.0.1:1/v1\n  name: m\n  max_retry: 3\n"
    )
    ended = cli("validate", "planned.yaml")
    assert ended.code == 2
    assert "planner.yaml:5:3" in ended.err
    assert "max_retries" in ended.err


def test_the_example_runs_with_any_endpoint_and_local_workers(server, cli, place):
    text = (EXAMPLE / "workflow.yaml").read_text().replace("smollm2-135m", "tiny")
    (place / "workflow.yaml").write_text(text)
    ended = cli("run", "workflow.yaml", "--inputs", str(EXAMPLE / "inputs.json"), "--json")
    assert ended.code == 0, ended.err
    assert len(ended.json["outputs"]["answers"]) == 2
    assert [len(asked["messages"]) for asked in server.asked] == [2, 4]  # the report goes on from the plan
    assert all(answer in server.prompts[1] for answer in ended.json["outputs"]["answers"])
