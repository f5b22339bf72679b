"""What the documents say is true: references are current, and every example runs as it is written."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from agentflow.cli.main import VERBS
from agentflow.kv.payload import CacheBody, Header, Payload, Turn
from agentflow.kv.wire import write_payload
from agentflow.models.pool import EnginePool
from agentflow.models.spec import resolve_model
from tests.cli.conftest import ROOT
from tests.tiny import words

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALLER = """\
model: smollm2-135m-26
teacher: smollm2-135m
leave_out: [2]
conversations: 4
window: 16
held_out: 1
steps: 2
"""
COMMAND = re.compile(r"^(?:\$ |  )(agentflow .+)$", re.MULTILINE)
NAMED_FILE = re.compile(r"\A# (\S+\.(?:yaml|py))")


def load_tool():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "tools" / "make_reference.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


TOOL = load_tool()


@pytest.mark.parametrize("name", TOOL.TARGETS)
def test_generated_pages_are_current(name):
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == TOOL.TARGETS[name](), "run: python tools/make_reference.py"


def test_every_key_of_the_schema_has_a_meaning_and_no_meaning_is_left_over():
    models = {model.__name__: model for _, model, _ in TOOL.SECTIONS}
    keys = {(m.__name__, info.alias or name) for m in models.values() for name, info in TOOL._own_fields(m)}
    assert set(TOOL.MEANINGS) <= keys
    assert set(TOOL.DEFAULTS) <= keys


def fences(language: str) -> list[tuple[Path, str]]:
    return [(page, body) for page in PAGES for found, body in FENCE.findall(page.read_text()) if found == language]


def commands() -> list[str]:
    found = [line for page, body in fences("console") for line in COMMAND.findall(body)]
    found += [line for page, body in fences("text") if page.name == "cli.md" for line in COMMAND.findall(body)]
    return list(dict.fromkeys(found))


@pytest.fixture
def reader(place, tmp_path, tiny_folder, monkeypatch):
    """The place of somebody who follows the documents: the embedded model is a tiny one, named files are there."""
    models = tmp_path / "cache" / "models"
    models.mkdir(parents=True)
    (models / "smollm2-135m").symlink_to(tiny_folder)
    (place / "configs" / "derive").mkdir(parents=True)
    (place / "configs" / "derive" / "smollm2-135m-26.yaml").write_text(SMALLER)
    for _, body in [*fences("yaml"), *fences("python")]:
        named = NAMED_FILE.match(body)
        if named:
            (place / named.group(1)).write_text(body)
    paragraphs = [[f"Title {n}", [f"Sentence {n} is here."]] for n in range(3)]
    record = {
        "_id": "q1",
        "question": "Where?",
        "answer": "here",
        "type": "bridge",
        "level": "easy",
        "supporting_facts": [["Title 0", 0], ["Title 1", 0]],
        "context": paragraphs,
    }
    (place / "dev.jsonl.gz").write_text(json.dumps(record) + "\n")  # told by its content, not by its name
    engine = EnginePool().get(resolve_model("smollm2-135m"))
    ids = tuple(words(12))
    header = Header("cache", "read", engine.fingerprint, len(ids), len(ids))
    payload = Payload(header, CacheBody(engine.prefill(ids), ids, (Turn("user", "hi"),)))
    write_payload(payload, place / "read.safetensors")
    return place


def test_there_are_examples_of_every_verb():
    shown = {line.split()[1] for line in commands()}
    assert set(VERBS) <= shown


@pytest.mark.parametrize("line", commands())
def test_every_command_in_the_documents_runs(line, reader, cli):
    if "--executor ray" in line:
        pytest.importorskip("ray", reason="needs the extra 'ray'")
    arguments = shlex.split(line)[1:]
    if "-n" in arguments:  # how many items is not what is tested
        arguments[arguments.index("-n") + 1] = "1"
    if "last" in arguments:  # somebody has run something before
        assert cli("run", "private_facts", "-n", "1").code == 0
    ended = cli(*arguments)
    assert ended.code == 0, ended.err
    assert ended.out.strip()


def python_examples() -> list[str]:
    return [body for _, body in fences("python") if not NAMED_FILE.match(body)]


@pytest.mark.parametrize("number", range(len(python_examples())))
def test_every_python_example_in_the_documents_runs(number, reader, monkeypatch):
    example = python_examples()[number]
    if "RayCluster" in example:
        pytest.importorskip("ray", reason="needs the extra 'ray'")
    exec(compile(example, "example", "exec"), {})


def test_every_link_between_documents_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_workflow_in_the_documents_is_valid(reader, cli):
    files = [m.group(1) for _, body in fences("yaml") if (m := NAMED_FILE.match(body))]
    assert files
    ended = cli("validate", *files, "--tools", "shop.py")
    assert ended.code == 0, ended.err
