"""Kill -9 at random moments of a run with a loop, maps and retries: it resumes, and nothing finished runs again."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from pathlib import Path

import pytest

from agentflow.models.pool import EnginePool
from agentflow.runtime.flow import Flow
from agentflow.runtime.runs import read_events
from agentflow.tools import Toolbox
from agentflow.workflow.loader import parse_workflow
from tests.stored import lines
from tests.tiny import make_engine, tiny_model

ROUNDS = 5
UNITS = 8 * ROUNDS
TEXT = """
workflow: rounds
inputs: {word: string}
agents: {a: {model: {source: tests/tiny, model: tiny}}}
nodes:
  stage:
    loop:
      max: 8
      until: "round == 4"
      nodes:
        read: {agent: a, prompt: "stage {{ round }} {{ inputs.word }}", max_new_tokens: 6}
        ask:
          agent: a
          map: {over: [a, b, c, d, e], max_concurrency: 3}
          prompt: "{{ item }} {{ rounds | length }}"
          max_new_tokens: 8
        sum: {agent: a, prompt: sum, max_new_tokens: 6, temperature: 0.7}
        note: {tool: stubborn, with: {text: "{{ nodes.sum.text }}"}, retry: 2}
      edges:
        - {from: read, to: ask, channel: cache}
        - {from: ask, to: sum, channel: {name: text, scope: answer}}
        - {from: sum, to: note}
        - {from: sum, to: read, channel: cache}
outputs: {last: "{{ nodes.stage.note.text }}", rounds: "{{ nodes.stage.rounds | length }}"}
"""
_refused: set[str] = set()


def stubborn(text: str) -> str:
    """Give a text back, but not when it is asked for the first time in this process."""
    if text not in _refused:
        _refused.add(text)
        raise RuntimeError("not yet")
    return text


def flow() -> Flow:
    engine = make_engine(tiny_model("llama", max_position_embeddings=4096), "tiny")
    return Flow(parse_workflow(TEXT), EnginePool(factory=lambda spec: engine), Toolbox([stubborn]))


def work(root: Path, folder: Path | None) -> None:
    """What a process does: run, or go on."""
    made = flow()
    if folder is None:
        made.run({"word": "seven"}, runs=root)
    else:
        made.resume(folder)


@pytest.fixture(scope="module")
def processes():
    """Processes that need not import torch again: they are forked off one that has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers.models.llama.modeling_llama", "agentflow.runtime.flow"])
    return context


def outcome(folder: Path) -> dict:
    return json.loads((folder / "outcome.json").read_text())


def killed(processes, root: Path, folder: Path | None, rng: random.Random) -> Path:
    """Start, wait for so many more events and a moment, and kill."""
    log = None if folder is None else folder / "events.jsonl"
    lines = (log.read_bytes().count(b"\n") if log else 0) + rng.randrange(1, 90)
    process = processes.Process(target=work, args=(root, folder))
    process.start()
    while process.is_alive():
        log = log or next(root.glob("*/events.jsonl"), None)
        if log is not None and log.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.02))
    process.kill()
    process.join()
    return log.parent


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_anywhere_resumes_to_the_same_end(processes, tmp_path, kills):
    flow().run({"word": "seven"}, runs=tmp_path / "whole")
    (uninterrupted,) = (tmp_path / "whole").iterdir()
    wanted = {unit: json.loads(line)["answer"] for unit, line in lines(uninterrupted).items()}
    assert len(wanted) == UNITS
    rng, halfway, retried = random.Random(7), 0, 0
    for trial in range(kills):
        folder = None
        for _ in range(rng.randrange(1, 4)):
            folder = killed(processes, tmp_path / str(trial), folder, rng)
        left = lines(folder)
        halfway += 0 < len(left) < len(wanted)
        flow().resume(folder)
        after = lines(folder)
        assert {unit: after[unit] for unit in left} == left
        assert {unit: json.loads(line)["answer"] for unit, line in after.items()} == wanted
        assert outcome(folder) == outcome(uninterrupted)
        assert not list(folder.rglob("*.part"))
        finished = [(e["node"], e["child"]) for e in read_events(folder) if e["kind"] == "node_finished"]
        assert len(finished) == len(set(finished))
        retried += sum(e["kind"] == "node_retried" for e in read_events(folder))
    assert halfway >= kills // 3, "most kills came before or after the run"
    assert retried
