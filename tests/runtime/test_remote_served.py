"""A remote orchestrator served for real, by `transformers serve` on loopback, drives local workers.

Needs the embedded model and the extra `serving`. Takes two to four minutes on two cores, half of it the server's start.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentflow.errors import ModelError
from agentflow.folders import cache_root
from agentflow.models.pool import EnginePool
from agentflow.models.remote import RemoteModel
from agentflow.models.spec import resolve_model
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore
from agentflow.workflow.loader import load_workflow, parse_workflow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "remote_orchestrator"
NEEDED = ("fastapi", "uvicorn", "openai")
missing = [name for name in NEEDED if find_spec(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.skipif(
        bool(missing), reason=f"`transformers serve` needs {', '.join(missing)}: pip install '.[serving]'"
    ),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The embedded model behind an endpoint of its own: a mapping for `remote`."""
    engine = EnginePool().get(resolve_model("smollm2-135m"))  # fetched and converted, where it was not
    assert engine.fingerprint.weights
    folder, port = cache_root() / "models" / "smollm2-135m", free_port()
    log = tmp_path_factory.mktemp("served") / "log"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--device", "cpu"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    remote = {"url": f"http://127.0.0.1:{port}/v1", "name": str(folder), "omit": ["stream_options"]}
    model = RemoteModel(resolve_model({"remote": {**remote, "max_retries": 0}}))
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()
            try:
                model.names()
                break
            except ModelError:
                time.sleep(0.5)
        yield remote
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def example(served, tmp_path, monkeypatch):
    """The example's folder, with its orchestrator served by the test."""
    (tmp_path / "configs" / "models").mkdir(parents=True)
    config = {"model": "orchestrator", "remote": served}
    (tmp_path / "configs" / "models" / "orchestrator.yaml").write_text(json.dumps(config))
    (tmp_path / "workflow.yaml").write_text((EXAMPLE / "workflow.yaml").read_text().replace(": 200", ": 24"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return load_workflow("workflow.yaml"), json.loads((EXAMPLE / "inputs.json").read_text())


def test_a_served_orchestrator_drives_local_workers_over_latent_briefing(example, tmp_path):
    workflow, inputs = example
    engines, store = EnginePool(), RunStore.create(tmp_path / "runs", "example", {})
    events = []
    (result,) = Orchestrator(bind(workflow), engines, store=store, listeners=[events.append]).run([("one", inputs)])
    assert not result.errors
    plan, (report,) = result.nodes["plan"][0], result.nodes["report"]
    assert plan.text
    assert plan.prefilled > 40
    assert 0 < plan.generated <= 24
    assert report.text
    for worker in result.nodes["work"]:
        (message,) = worker.messages
        assert message.channel == "latent_briefing"
        assert 0 < message.kept < message.tokens
        assert worker.text
    assert len(result.nodes["work"]) == 2
    pieces = [e for e in events if e.kind == "node_token" and e.node == "plan"]
    assert "".join(e.data["text"] for e in pieces).strip() == plan.text
    (again,) = Orchestrator(bind(workflow), engines, store=RunStore.open(store.folder)).run([("one", inputs)])
    assert again.outputs == result.outputs


def test_what_is_served_answers_as_the_engine_here_does(served):
    """Greedy decoding of one model by two programs: the endpoint's words are the engine's own."""
    text = """
workflow: both
inputs: {q: string}
agents:
  there: {model: REMOTE, system: Be brief.}
  here: {model: smollm2-135m, system: Be brief.}
nodes:
  one: {agent: there, prompt: "{{ inputs.q }}", max_new_tokens: 12}
  two: {agent: here, prompt: "{{ inputs.q }}", max_new_tokens: 12}
outputs: {one: "{{ nodes.one.text }}", two: "{{ nodes.two.text }}"}
"""
    workflow = parse_workflow(text.replace("REMOTE", json.dumps({"remote": served})))
    (result,) = Orchestrator(bind(workflow), EnginePool()).run([("one", {"q": "What is the capital of France?"})])
    assert not result.errors
    assert result.outputs["one"] == result.outputs["two"]
    there, here = result.nodes["one"][0], result.nodes["two"][0]
    assert there.prefilled + there.reused == here.prefilled + here.reused
    assert abs(there.generated - here.generated) <= 1  # the end of an answer is counted or not
