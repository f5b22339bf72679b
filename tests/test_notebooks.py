"""The notebooks: stored without outputs, small on request, and they run from the first cell to the last."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
ITEMS = "AGENTFLOW_NOTEBOOK_ITEMS"

every = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)


def code(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_the_notebooks_of_the_documents_are_there():
    assert {"comparing_channels", "quickstart", "writing_a_channel"} <= set(NAMES)


@every
def test_a_notebook_is_stored_without_outputs(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], set(book["metadata"])) == (4, {"kernelspec", "language_info"})
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in code(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert cell["metadata"] == {}


@every
def test_the_first_cell_lets_a_variable_make_the_notebook_small(path, monkeypatch):
    source = "".join(code(path)[0]["source"])
    found: dict[str, object] = {}
    exec(source, found)
    assert isinstance(found["ITEMS"], int)
    monkeypatch.setenv(ITEMS, "2")
    exec(source, found)
    assert found["ITEMS"] == 2


@every
def test_every_link_of_a_notebook_leads_somewhere(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#:\s]+)\)", "".join(cell["source"])):
                assert (path.parent / target).exists(), target


@pytest.mark.real
@every
def test_a_notebook_runs_from_the_first_cell_to_the_last(path, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv(ITEMS, "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):  # nothing is left in the user's home
        monkeypatch.setenv(variable, str(tmp_path / "jupyter"))
    place = tmp_path / "place"
    place.mkdir()
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    client = nbclient.NotebookClient(book, timeout=400, resources={"metadata": {"path": str(place)}})
    client.execute()
    assert not [o for cell in book.cells if cell.cell_type == "code" for o in cell.outputs if o.output_type == "error"]
