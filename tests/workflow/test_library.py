from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.workflow import library
from agentflow.workflow.library import find, is_plain, library_root, shipped


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "workflows/demo.yaml",
        "workflows/sub/deep.yml",
        "agents/demo.yaml",
        "configs/models/m.yaml",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a: 1\n")
    (tmp_path / "workflows" / "notes.txt").write_text("x")
    monkeypatch.setattr(library, "library_root", lambda: tmp_path)
    return tmp_path


def test_the_root_holds_the_shipped_folders() -> None:
    assert any((library_root() / kind).is_dir() for kind in library.KINDS) or not library_root().exists()


def test_the_root_of_a_checkout_is_the_repository_and_of_a_wheel_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "agentflow"
    package.mkdir()
    monkeypatch.setattr(library, "_PACKAGE", package)
    assert library_root() == package / "library"
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "workflows").mkdir()
    assert library_root() == tmp_path
    (package / "library").mkdir()
    assert library_root() == package / "library"


def test_files_are_found_by_name_and_by_kind(root: Path) -> None:
    workflow = root / "workflows" / "demo.yaml"
    for ref in ("demo", "demo.yaml", "workflows/demo", "workflows/demo.yaml"):
        assert find(ref) == workflow
    assert find("demo", "agents") == find("agents/demo.yaml") == root / "agents" / "demo.yaml"
    assert find("configs/models/m.yaml") == root / "configs" / "models" / "m.yaml"
    assert find("sub/deep") == root / "workflows" / "sub" / "deep.yml"
    assert find("nobody") is None


def test_shipped_names_are_sorted_and_without_suffix(root: Path) -> None:
    assert shipped("workflows") == ["demo", "sub/deep"]
    assert shipped("agents") == ["demo"]
    assert shipped("configs") == ["models/m"]
    assert shipped("secrets") == []


@pytest.mark.parametrize("ref", ["", ".", "/etc/passwd", "../x", "a/../../x", "~/x", "C:/x", "a\\b", "a\0b", "a\nb"])
def test_references_that_leave_the_library_are_not_followed(root: Path, ref: str) -> None:
    assert not is_plain(ref)
    assert find(ref) is None
