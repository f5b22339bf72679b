"""The examples run as they stand; the example channel is found through its entry point, like anybody's plug-in."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import agentflow
from agentflow.channels.base import Message, Task
from agentflow.channels.cache import CacheChannel
from agentflow.errors import ModelError
from agentflow.kv.payload import Turn
from agentflow.models.chat import render
from tests.cli.conftest import FACTS, save_tiny
from tests.tiny import tiny_engine

ROOT = Path(__file__).resolve().parents[1]
WINDOW = ROOT / "examples" / "window_channel"
TURNS = (Turn("system", "be brief"), Turn("user", "the code of the room is seven, remember it"))


@pytest.fixture
def window(monkeypatch):
    monkeypatch.syspath_prepend(str(WINDOW))
    import window_channel

    return window_channel


@pytest.fixture
def message():
    engine = tiny_engine()
    ids = tuple(render(engine.tokenizer, TURNS, reply=False))
    return Message("read", TURNS, "", ids, engine.prefill(ids), engine)


def test_the_window_channel_keeps_sinks_and_the_last_positions(window, message):
    channel = window.WindowChannel(window.WindowSettings(sinks=2, recent=5))
    payload = channel.send(message, Task("", "", message.engine))
    context = channel.receive(payload, message.engine)
    length = message.cache.next_position
    assert context.cache.positions.tolist() == [0, 1, *range(length - 5, length)]
    assert context.cache.next_position == length
    assert payload.header.kept == 7
    assert payload.header.losses == (f"{length - 7} positions before the window dropped",)


def test_a_window_that_is_wide_enough_is_the_cache_channel(window, message):
    task = Task("", "", message.engine)
    channel = window.WindowChannel(window.WindowSettings(recent=10_000))
    payload, whole = channel.send(message, task), CacheChannel().send(message, task)
    assert payload.nbytes == whole.nbytes
    assert payload.header.losses == ()


def installed(folder: Path) -> Path:
    """What `pip install examples/window_channel` leaves: the module, and metadata with its entry point."""
    project = tomllib.loads((WINDOW / "pyproject.toml").read_text())["project"]
    folder.mkdir()
    (folder / "window_channel.py").write_text((WINDOW / "window_channel.py").read_text())
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["agentflow.channels"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[agentflow.channels]", *lines]) + "\n")
    return folder


def test_an_installed_channel_works_in_a_workflow_by_its_name(tmp_path):
    site = installed(tmp_path / "site")
    save_tiny(tmp_path / "tiny")
    channel = "channel: {name: window, sinks: 2, recent: 8}"
    (tmp_path / "facts.yaml").write_text(FACTS.replace("channel: cache", channel))
    done = subprocess.run(
        [sys.executable, "-c", "from agentflow.cli.main import main; main()", "run", "facts.yaml", "-n", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
            "AGENTFLOW_CACHE": str(tmp_path / "cache"),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "\nwindow " in done.stdout


@pytest.mark.real
def test_the_python_example_gives_the_same_answer_over_both_channels():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "from_python.py")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    text, cache = done.stdout.splitlines()
    assert text.startswith("text: ")
    assert text.split("(")[0].removeprefix("text") == cache.split("(")[0].removeprefix("cache")


def test_a_model_that_has_to_be_made_first_is_told_before_another_one_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    monkeypatch.setattr("agentflow.models.pool.load_model", lambda *_: pytest.fail("a model was loaded"))
    flow = agentflow.load_workflow(ROOT / "examples" / "two_models" / "workflow.yaml")
    with pytest.raises(ModelError, match="'smollm2-135m-26' is not made on this machine yet"):
        flow.run({"facts": ["the code is seven"], "questions": ["what code?"]})


def test_the_two_models_example_fits_by_the_bundle_that_ships_for_them(tmp_path, monkeypatch):
    from agentflow.runtime.binding import bind
    from agentflow.workflow.loader import load_workflow

    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))  # neither model is there: names and cards are enough
    binding = bind(load_workflow(ROOT / "examples" / "two_models" / "workflow.yaml"))
    ((_, edge, channel),) = binding.incoming("answer")
    assert (edge.sender, channel.name) == ("read", "lcf")
    assert binding.model_of("read").source != binding.model_of("answer").source
