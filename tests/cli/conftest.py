"""The command line on tiny models: saved like real ones, run through `main()` or in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentflow.cli.main import main
from tests.tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]

QUESTION = """\
workflow: question
inputs: {question: string}
agents: {a: {model: tiny, system: Answer.}}
nodes:
  one: {agent: a, prompt: "{{ inputs.question }}", max_new_tokens: 6}
outputs: {answer: "{{ nodes.one.text }}"}
"""
FACTS = """\
workflow: facts
task: {name: private_facts, answer: answer, facts: 2, questions: 2}
inputs: {facts: list, questions: list}
agents: {a: {model: tiny}}
nodes:
  read: {agent: a, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  answer: {agent: a, prompt: "{{ question }}", map: {over: inputs.questions, as: question}, max_new_tokens: 6}
edges:
  - {from: read, to: answer, channel: cache}
outputs: {answers: "{{ nodes.answer.texts }}"}
"""
SLOW = QUESTION.replace("max_new_tokens: 6", "max_new_tokens: 3000").replace("workflow: question", "workflow: slow")


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """Standard output as JSON; fails when there is anything else on it."""
        return json.loads(self.out)


Cli = Callable[..., Ended]


def save_tiny(folder: Path, seed: int = 0) -> Path:
    """A tiny model as a folder that transformers can load; 4,096 positions, so that byte-long prompts fit."""
    model = tiny_model("llama", seed=seed, max_position_embeddings=4096)
    model.generation_config.eos_token_id = None  # random weights would stop at random
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def place(tmp_path, monkeypatch, tiny_folder) -> Path:
    """The working folder of a stranger: two workflows, a tiny model, an empty cache folder elsewhere."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AGENTFLOW_SIGNING_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    (folder / "tiny").symlink_to(tiny_folder)
    for name, text in (("question", QUESTION), ("facts", FACTS), ("slow", SLOW)):
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture
def cli(place, capsys) -> Cli:
    """Run a command in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Ended(int(end.value.code or 0), captured.out, captured.err)

    return run


def command_line(*arguments: str) -> list[str]:
    """The same command for a process of its own."""
    return [sys.executable, "-c", "from agentflow.cli.main import main; main()", *arguments]


@pytest.fixture
def process(place) -> Cli:
    """Run a command in a process of its own, without a terminal."""

    def run(*arguments: str, **environment: str) -> Ended:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(
            command_line(*arguments), capture_output=True, text=True, check=False, env=env, timeout=120
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


def files_below(folder: Path) -> set[str]:
    """Every file and folder below, as text; links are not followed."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
