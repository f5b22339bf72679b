"""Kill -9 at random moments: every run resumes, no finished unit runs again, and the end is the uninterrupted one."""

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
from agentflow.workflow.loader import parse_workflow
from tests.stored import lines
from tests.tiny import make_engine, tiny_model

STAGES = 6
TINY = "{source: tests/tiny, model: tiny}"


def text() -> str:
    """Six stages, each a reader, a map over five elements and a node that hears them all: 42 units."""
    nodes, edges = [], []
    for stage in range(STAGES):
        nodes += [
            f"  read{stage}: {{agent: a, prompt: 'stage {stage} {{{{ inputs.word }}}}', max_new_tokens: 6}}",
            f"  ask{stage}: {{agent: a, map: {{over: [a, b, c, d, e]}}, prompt: '{{{{ item }}}}', max_new_tokens: 8}}",
            f"  sum{stage}: {{agent: a, prompt: 'sum', max_new_tokens: 6, temperature: 0.7}}",
        ]
        edges += [f"  - {{from: read{stage}, to: ask{stage}, channel: cache}}"]
        edges += [f"  - {{from: ask{stage}, to: sum{stage}, channel: {{name: text, scope: answer}}}}"]
        if stage:
            edges += [f"  - {{from: sum{stage - 1}, to: read{stage}, channel: cache}}"]
    head = f"workflow: stages\ninputs: {{word: string}}\nagents: {{a: {{model: {TINY}}}}}\n"
    tail = f'outputs: {{last: "{{{{ nodes.sum{STAGES - 1}.text }}}}"}}\n'
    return f"{head}nodes:\n{chr(10).join(nodes)}\nedges:\n{chr(10).join(edges)}\n{tail}"


def flow() -> Flow:
    engine = make_engine(tiny_model("llama", max_position_embeddings=4096), "tiny")
    return Flow(parse_workflow(text()), EnginePool(factory=lambda spec: engine))


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
    assert len(wanted) == 42
    rng, halfway = random.Random(7), 0
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
    assert halfway >= kills // 3, "most kills came before or after the run"
