"""The wheel holds everything that is found by name, and works where there is no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("agents", "workflows", "configs")

pytestmark = pytest.mark.slow


def build(target: Path) -> Path:
    """Build the wheel; without isolation where the build back end is installed, so that no index is asked."""
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--quiet", "--wheel-dir", str(target)]
    try:
        import hatchling  # noqa: F401

        command.append("--no-build-isolation")
    except ImportError:
        pass
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "--no-build-isolation" not in command:
        pytest.skip(f"the build back end can't be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_yaml_file_and_every_bundle_that_ships(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    shipped = {p.relative_to(ROOT).as_posix() for kind in KINDS for p in (ROOT / kind).rglob("*.yaml")}
    assert shipped
    assert {f"agentflow/library/{name}" for name in shipped} <= names
    bundles = {p.relative_to(ROOT).as_posix() for p in (ROOT / "configs" / "adapters").glob("*/adapter.*")}
    assert bundles
    assert {f"agentflow/library/{name}" for name in bundles} <= names
    assert not [name for name in names if name.startswith(("tests/", "runs/", "benchmarks/"))]


def test_a_shipped_workflow_is_valid_from_the_wheel_in_an_empty_folder(wheel, tmp_path):
    unpacked, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    code = "import agentflow, sys; print(agentflow.__file__, file=sys.stderr); "
    code += "from agentflow.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "validate", "private_facts", "hotpotqa"],
        capture_output=True,
        text=True,
        check=False,
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
    )
    assert str(unpacked) in done.stderr, "the checkout was used, not the wheel"
    assert done.returncode == 0, done.stderr
    assert "private_facts.yaml: good." in done.stdout
    assert str(unpacked / "agentflow" / "library") in done.stdout
    assert not list(empty.iterdir())
