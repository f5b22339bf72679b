"""`agentflow init`: what it writes runs as its README says, and it writes over nothing."""

from __future__ import annotations

import json
import os
import re
import shlex

import pytest
from jsonschema import Draft7Validator

from agentflow.workflow import read_yaml
from tests.cli.conftest import files_below

COMMAND = re.compile(r"^\$ agentflow (.+)$", re.MULTILINE)


def commands(project):
    found = [shlex.split(line) for line in COMMAND.findall((project / "README.md").read_text())]
    assert [command[0] for command in found] == ["run", "compare"]
    return found


@pytest.fixture
def project(cli, place, monkeypatch):
    """A new project on a tiny model, which is the working folder."""
    ended = cli("init", "lockers")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-2:] == ["cd lockers", "agentflow run workflow.yaml --inputs facts.json"]
    folder = place / "lockers"
    for path in folder.rglob("*.yaml"):
        path.write_text(path.read_text().replace("smollm2-135m", str(place / "tiny")))
    monkeypatch.chdir(folder)
    return folder


def test_a_new_project_is_valid_and_runs_as_its_readme_says(cli, project):
    assert cli("validate", "workflow.yaml").code == 0
    run, _ = commands(project)
    assert len(cli(*run, "--json").json["outputs"]["answers"]) == 2


@pytest.mark.slow
def test_a_new_project_is_compared_as_its_readme_says(cli, project):
    _, compare = commands(project)
    ended = cli(*compare)
    assert ended.code == 0, ended.err
    assert "cache" in ended.out


@pytest.mark.real
def test_a_new_project_runs_on_the_embedded_model(cli, place, monkeypatch):
    monkeypatch.delenv("AGENTFLOW_CACHE")  # where the converted model is
    cli("init", "lockers")
    monkeypatch.chdir(place / "lockers")
    run, _ = commands(place / "lockers")
    ended = cli(*run, "--json")
    assert ended.code == 0, ended.err
    assert all(re.search("[0-9]{4}", answer) for answer in ended.json["outputs"]["answers"])


def test_nothing_is_overwritten(cli, place):
    assert cli("init", "lockers").code == 0
    (place / "lockers" / "README.md").write_text("mine")
    before = files_below(place)
    ended = cli("init", "lockers")
    assert ended.code == 2
    assert "lockers: It is not empty." in ended.err
    assert cli("init", "facts.yaml").code == 2
    assert files_below(place) == before
    assert (place / "lockers" / "README.md").read_text() == "mine"


def test_an_empty_folder_is_filled(cli, place):
    (place / "new").mkdir()
    found = cli("init", "new", "--json").json["written"]
    names = ("workflow.yaml", "agents/reader.yaml", "README.md", "facts.json")
    schemas = ("schema/workflow.schema.json", "schema/agent.schema.json")
    assert {f"new/{name}" for name in (*names, *schemas)} == set(found)


def test_every_file_names_the_schema_that_accepts_it(cli, place):
    cli("init", "new")
    for path in (place / "new").rglob("*.yaml"):
        named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())
        assert named, path
        schema = json.loads((path.parent / named[1]).read_text())
        assert list(Draft7Validator(schema).iter_errors(read_yaml(path).value)) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_can_not_be_written_is_told(cli, place):
    (place / "locked").mkdir(mode=0o500)
    ended = cli("init", "locked/lockers")
    assert ended.code == 2
    assert "can't be written" in ended.err
