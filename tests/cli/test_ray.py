"""`--executor ray` as a stranger uses it: the same answers, an end that leaves nothing, errors that say what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, Cli, command_line
from tests.cli.test_process import STOPPED, wait_until
from tests.clusters import CPUS

FLOW = """\
workflow: flow
inputs: {question: string}
agents: {a: {model: {source: tiny, actors: {cpus: CPUS}}}}
nodes:
  first: {agent: a, prompt: "{{ inputs.question }}", max_new_tokens: 6}
  second: {agent: a, prompt: "And?", max_new_tokens: NEW}
edges:
  - {from: first, to: second, channel: cache}
outputs: {answer: "{{ nodes.second.text }}"}
"""


@pytest.fixture
def flow(place: Path, tiny_folder: Path) -> Path:
    return write(place, tiny_folder)


def write(place: Path, tiny: Path, *, cpus: float = 1, new: int = 6) -> Path:
    path = place / "flow.yaml"
    path.write_text(FLOW.replace("CPUS", str(cpus)).replace("NEW", str(new)).replace("tiny", str(tiny)))
    return path


def test_a_run_on_a_cluster_answers_as_one_here_and_is_resumed_there(cluster: Any, cli: Cli, flow: Path) -> None:
    here = cli("run", "flow.yaml", "--input", "question=who", "--json")
    there = cli("run", "flow.yaml", "--input", "question=who", "--executor", "ray", "--json")
    assert there.code == 0, there.err
    assert there.json["outputs"] == here.json["outputs"]
    assert "connecting to Ray" in there.err
    assert "on a Ray actor" in there.err
    again = cli("runs", "resume", there.json["run"], "--executor", "ray", "--json")
    assert again.code == 0, again.err
    assert again.json["outputs"] == here.json["outputs"]


def test_more_than_the_cluster_has_is_one_message(cluster: Any, cli: Cli, place: Path, tiny_folder: Path) -> None:
    write(place, tiny_folder, cpus=64)
    ended = cli("run", "flow.yaml", "--input", "question=who", "--executor", "ray")
    assert ended.code == 2
    assert "with 64 CPUs can't be placed: the cluster has 2 nodes with 4 CPUs; 4 CPUs." in ended.err
    assert "Traceback" not in ended.err
    assert not (place / "runs").exists()


def test_what_actors_don_t_know_is_told_with_its_place(cli: Cli, flow: Path) -> None:
    flow.write_text(flow.read_text().replace("cpus", "cpu"))
    ended = cli("run", "flow.yaml", "--input", "question=who", "--executor", "ray")
    assert ended.code == 2
    assert "flow.yaml:3:" in ended.err
    assert "Did you mean 'cpus'?" in ended.err


def test_without_ray_it_is_said_what_to_install(cli: Cli, flow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = cli("run", "flow.yaml", "--input", "question=who", "--executor", "ray")
    assert ended.code == 2
    assert "pip install 'agentflow-kv[ray]'" in ended.err


def test_a_cluster_that_is_not_there_is_told_at_once(process: Cli, flow: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    start = time.monotonic()
    ended = process("run", "flow.yaml", "--input", "question=who", "--executor", "ray", RAY_ADDRESS="127.0.0.1:1")
    assert ended.code == 2
    assert "127.0.0.1:1: The Ray cluster can't be reached" in ended.err
    assert "Traceback" not in ended.err
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_run_that_is_ended_leaves_no_actor_and_is_gone_on_with(
    cluster: Any, cli: Cli, place: Path, tiny_folder: Path, how: signal.Signals
) -> None:
    import ray

    def free() -> float:
        return float(ray.available_resources().get("CPU", 0))

    write(place, tiny_folder, new=1500)
    wait_until(lambda: free() == 2 * CPUS)
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = command_line("run", "flow.yaml", "--input", "question=who", "--executor", "ray")
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        wait_until(lambda: any('"second"' in log.read_text() for log in place.glob("runs/*/events.jsonl")))
        time.sleep(0.3)  # into the decoding loop
        wait_until(lambda: free() == 2 * CPUS - 1)
        run.send_signal(how)
        _, told = run.communicate(timeout=60)
    finally:
        run.kill()
    wait_until(lambda: free() == 2 * CPUS)
    [folder] = place.glob("runs/*")
    if how == signal.SIGINT:
        assert run.returncode == STOPPED
        assert f"go on with: agentflow runs resume runs/{folder.name} --executor ray" in told
        assert "Traceback" not in told
        return
    again = cli("runs", "resume", str(folder), "--executor", "ray", "--json")
    assert again.code == 0, again.err
    assert (folder / "events.jsonl").read_text().count('"node_reused"') == 1


@pytest.mark.real
@pytest.mark.slow
def test_the_embedded_model_answers_on_a_cluster_as_it_does_here(
    cluster: Any, cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTFLOW_CACHE")
    for channel in ("cache", "latent_briefing"):
        here, there = (
            cli("run", "private_facts", "-n", "1", "--channel", channel, "--executor", executor, "--json")
            for executor in ("local", "ray")
        )
        assert there.code == 0, there.err
        assert [item["answers"] for item in there.json["items"]] == [item["answers"] for item in here.json["items"]]
        for figure in ("prefilled", "reused", "scores"):
            assert there.json[figure] == here.json[figure]
