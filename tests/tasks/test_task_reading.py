from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import DataError
from agentflow.tasks.reading import load_records, read_records

ROWS = [{"id": "1", "text": "line\u2028separator"}, {"id": "2", "text": "ü"}]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
FORMS = {
    "list": json.dumps(ROWS),
    "indented list": json.dumps(ROWS, indent=2),
    "lines": LINES,
    "lines with gaps": f"\n{LINES.replace(chr(10), chr(13) + chr(10) * 2)}\n\n",
    "held": json.dumps({"version": 1, "data": ROWS}),
    "held under any one key": json.dumps({"questions": ROWS}),
    "keyed": json.dumps({"0": ROWS[0], "1": ROWS[1]}, indent=1),
    "byte order mark": "\ufeff" + LINES,
}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_reads_the_same_whatever_the_files_name(tmp_path: Path, form: str, packed: bool) -> None:
    content = FORMS[form].encode()
    path = write(tmp_path / "name.says.nothing", gzip.compress(content) if packed else content)
    assert read_records(path) == ROWS


def test_a_single_line_is_one_record(tmp_path: Path) -> None:
    assert read_records(write(tmp_path / "f", json.dumps(ROWS[0]) + "\n")) == ROWS[:1]


@pytest.mark.parametrize(
    ("content", "message", "place"),
    [
        ("", "empty", ""),
        (" \n ", "empty", ""),
        ("[]", "no records", ""),
        ('{"data": []}', "no records", ""),
        ("hello", "not JSON", ":1"),
        ("7", "single value", ""),
        ('[{"a": 1},', "not JSON", ":1"),
        ('{"a": 1}\n{"a": \n', "not JSON", ":2"),
        ('{"a" 1}\n{"a": 2}\n', "not JSON", ":1"),
        ('{"a": 1}\n[2]\n', "must be an object, not a list", ":2"),
        ('[{"a": 1}, null]', "must be an object, not null", ", record 2"),
        ('{"a": NaN}', "NaN is not a JSON value", ""),
        ('{"a": "\\ud800"}', "half a character", ", record 1"),
        ("[" * 200_000, "nested too deeply", ""),
        (b'{"a": 1}\n{"a": "\xff"}', "not UTF-8", ":2"),
        (b"\x1f\x8b", "cut short", ""),
        (gzip.compress(LINES.encode())[:-12], "cut short", ""),
        (gzip.compress(LINES.encode())[:-8] + b"\0" * 8, "damaged", ""),
        (gzip.compress(LINES.encode()) + b"tail", "damaged", ""),
        (b"\x1f\x8b" + b"\x08" + b"\xff" * 40, "damaged|cut short", ""),
    ],
)
def test_a_bad_file_is_named_with_its_line_or_record(
    tmp_path: Path, content: str | bytes, message: str, place: str
) -> None:
    path = write(tmp_path / "data.jsonl", content)
    with pytest.raises(DataError, match=message) as caught:
        read_records(path)
    assert caught.value.where is not None
    assert caught.value.where.startswith(f"{path}{place}")


def test_missing_files_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_records(tmp_path / "nowhere")
    with pytest.raises(DataError, match="folder"):
        read_records(tmp_path)
    with pytest.raises(DataError, match="can't be read"):
        read_records(tmp_path / "data.json" / "inside" if write(tmp_path / "data.json", "[]") else tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="regular file"):
        read_records(tmp_path / "pipe")


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_past_the_limit_is_refused_while_it_streams(tmp_path: Path, packed: bool) -> None:
    content = b"[" + b" " * 5_000_000 + b"]"
    path = write(tmp_path / "bomb", gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match="larger than 1,000,000 bytes"):
        read_records(path, max_bytes=1_000_000)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bomb"]


def test_a_missing_key_is_named_with_its_record(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", '{"id": 1}\n\n{"di": 2}\n')
    with pytest.raises(DataError, match=r"f\.jsonl:3: The record has no 'id'"):
        read_records(path, keys=["id"])


def test_records_know_their_place(tmp_path: Path) -> None:
    records = load_records(write(tmp_path / "f.json", json.dumps(ROWS)))
    assert [record.index for record in records] == [0, 1]
    assert records[1].where.endswith("f.json, record 2")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=80))
def test_any_bytes_give_records_or_a_data_error(tmp_path: Path, content: bytes) -> None:
    for body in (content, b"[" + content + b"]", gzip.compress(content)):
        path = write(tmp_path / "f", body)
        try:
            found = read_records(path)
        except DataError:
            continue
        assert found
        assert all(isinstance(record, dict) for record in found)
