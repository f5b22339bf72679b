from __future__ import annotations

import copy
import math
import os
import pickle
import time
from pathlib import Path

import pytest

from agentflow.errors import UserError
from agentflow.workflow import Location, WorkflowProblemsError, parse_yaml, read_yaml
from agentflow.workflow.source import LARGEST_FILE


def test_only_true_and_false_are_booleans() -> None:
    source = parse_yaml("on: yes\nanswer: no\noff: Off\ny: n\na: true\nb: False\nc: TRUE\n")
    assert source.value == {
        "on": "yes",
        "answer": "no",
        "off": "Off",
        "y": "n",
        "a": True,
        "b": False,
        "c": True,
    }


def test_numbers_follow_the_core_schema() -> None:
    source = parse_yaml("[1, -2, 012, 0x1f, 0o17, 1.5, 1e-4, .5, 1., .inf, -.INF, 1_000, 1:30, 0b1, +3]")
    expected = [1, -2, 12, 31, 15, 1.5, 0.0001, 0.5, 1.0, math.inf, -math.inf, "1_000", "1:30", "0b1", 3]
    assert source.value == expected
    assert [type(value) for value in source.value] == [type(value) for value in expected]
    assert math.isnan(parse_yaml("[.nan]").value[0])


def test_dates_nulls_and_quoted_values_stay_what_they_look_like() -> None:
    source = parse_yaml("[2020-01-01, null, ~, '', \"1\", '~', .5.5, -, e3]".replace("-,", "'-',"))
    assert source.value == ["2020-01-01", None, None, "", "1", "~", ".5.5", "-", "e3"]


def test_explicit_core_tags_are_read() -> None:
    assert parse_yaml("[!!str 12, !!int '3', !!float 1, !!bool true, !!null ~, ! 5, !!seq [], !!map {}]").value == [
        "12",
        3,
        1.0,
        True,
        None,
        "5",
        [],
        {},
    ]


@pytest.mark.parametrize("text", ["a: !!int x", "a: !!bool 1", "a: !!seq {}", "a: !!set {x}", "a: !!omap []"])
def test_tags_that_do_not_fit_or_are_not_core_are_refused(text: str) -> None:
    with pytest.raises(WorkflowProblemsError, match=":1:4"):
        parse_yaml(text)


def test_every_value_and_key_knows_its_place() -> None:
    source = parse_yaml("a:\n  - {b: 1, c: [x, yy]}\n  - |\n    text\n中: {d: e}\n", "f.yaml")
    assert str(source.location(("a",), key=True)) == "f.yaml:1:1"
    assert str(source.location(("a", 0, "c", 1))) == "f.yaml:2:19"
    assert source.location(("a", 0, "c", 1)).length == 2
    assert str(source.location(("a", 0, "c"), key=True)) == "f.yaml:2:12"
    assert str(source.location(("a", 1))) == "f.yaml:3:5"
    assert str(source.location(("中", "d"))) == "f.yaml:5:8"


def test_a_path_that_leads_nowhere_gives_the_nearest_enclosing_place() -> None:
    source = parse_yaml("a:\n  b: [1]\n")
    assert source.location(("a", "b", 7, "x")) == source.location(("a", "b"))
    assert source.location(("z",)) == source.location(())
    assert source.location(("a", "b", "text", 0)) == source.location(("a", "b"))
    assert source.has(("a", "b", 0))
    assert not source.has(("a", "c"))


def test_words_inside_a_text_are_found_in_every_style() -> None:
    text = 'p: "x {{ nodes.a }}"\nb: |\n  nodes.a\n  {{ nodes.a }} {{ nodes.a }}\nf: >\n  one\n  {{ nodes.a }}\n'
    source = parse_yaml(text)
    assert str(source.location_of_text(("p",), "nodes.a")) == "<text>:1:10"
    assert str(source.location_of_text(("b",), "nodes.a")) == "<text>:4:6"
    assert str(source.location_of_text(("b",), "nodes.a", 1)) == "<text>:4:20"
    assert str(source.location_of_text(("f",), "nodes.a")) == "<text>:7:6"
    assert str(source.location_of_text(("f",), "nodes.zz")) == "<text>:5:4"
    assert str(source.location_of_line(("b",), 2)) == "<text>:4:3"


def test_line_numbers_agree_with_every_kind_of_line_break() -> None:
    for text in ("a: 1\r\nb: 2\r\n", "a: 1\rb: 2\r", "a: 1\u2028b: 2", "\ufeffa: 1\nb: 2"):
        location = parse_yaml(text).location(("b",))
        assert (location.line, location.column, location.text) == (2, 4, "b: 2")


def test_aliases_share_the_value_they_stand_for() -> None:
    source = parse_yaml("a: &x {k: [1]}\nb: *x\n")
    assert source.value["b"] is source.value["a"]
    assert source.location(("b", "k", 0)) == source.location(("a", "k", 0))


def test_duplicate_keys_name_both_places_and_all_are_told() -> None:
    with pytest.raises(WorkflowProblemsError) as caught:
        parse_yaml("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    first, second = caught.value.problems
    assert (first.path, str(first.location)) == (("b", "c"), "<text>:2:11")
    assert "the first is at 2:5" in first.what
    assert (second.path, second.what) == (("a",), "the key 'a' appears twice; the first is at 1:1")


def test_keys_may_be_text_or_whole_numbers_only() -> None:
    assert parse_yaml("{1: a, b: c}").value == {1: "a", "b": "c"}
    for key in ("true", "1.5", "~"):
        with pytest.raises(WorkflowProblemsError, match="a key must be text"):
            parse_yaml(f"{key}: x")


def test_alias_bombs_are_refused_before_they_unfold() -> None:
    lines = ["a0: &a0 {k: v}"] + [f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 35)]
    begin = time.monotonic()
    with pytest.raises(WorkflowProblemsError, match="too large"):
        parse_yaml("\n".join(lines))
    assert time.monotonic() - begin < 1


def test_depth_counts_through_aliases() -> None:
    text = "a: &a " + "[" * 30 + "]" * 30 + "\nb: " + "[" * 20 + "*a" + "]" * 20
    with pytest.raises(WorkflowProblemsError, match=":2:24 – too large: nested more than 40"):
        parse_yaml(text)


def test_a_document_may_start_and_end_explicitly() -> None:
    assert parse_yaml("---\na: 1\n...\n").value == {"a": 1}


def test_a_file_that_is_too_large_is_refused_quickly(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: 1\n" * (LARGEST_FILE // 4))
    begin = time.monotonic()
    with pytest.raises(WorkflowProblemsError, match="larger than 8 MiB"):
        read_yaml(path)
    assert time.monotonic() - begin < 1


def test_what_can_not_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(WorkflowProblemsError, match="a folder, not a file"):
        read_yaml(tmp_path)
    with pytest.raises(WorkflowProblemsError, match="there is no such file"):
        read_yaml(tmp_path / "none.yaml")
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(WorkflowProblemsError, match="not a regular file"):
        read_yaml(pipe)
    long = tmp_path / ("x" * 4000)
    with pytest.raises(WorkflowProblemsError, match="can't be read"):
        read_yaml(long)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    with pytest.raises(WorkflowProblemsError, match="can't be read"):
        read_yaml(path)


def test_bytes_that_are_not_utf_8_are_told_at_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("a: 1\nä: ".encode() + b"\xff\n")
    with pytest.raises(WorkflowProblemsError, match=r":2:4 – the byte 0xff is not UTF-8"):
        read_yaml(path)


def test_files_are_shown_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sub" / "a.yaml"
    path.parent.mkdir()
    path.write_text("a: [1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkflowProblemsError, match=r"^sub/a\.yaml:1:4 – "):
        read_yaml(path)
    monkeypatch.chdir(path.parent)
    (tmp_path / "b.yaml").write_text("a: [1")
    with pytest.raises(WorkflowProblemsError) as caught:
        read_yaml(tmp_path / "b.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/b.yaml:1:4 – ")


def test_the_python_parser_gives_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    from agentflow.workflow import composer

    text = "a: {b: [1, 'x'], c: |\n  t}\n".replace(", c: |\n  t}", "}\nc: |\n  t\nd: &x e\nf: *x")
    fast = parse_yaml(text)
    monkeypatch.setattr(composer, "_Loader", yaml.SafeLoader)
    slow = parse_yaml(text)
    assert slow.value == fast.value
    for path in (("a", "b", 1), ("c",), ("d",), ("f",)):
        assert slow.location(path) == fast.location(path)
    for broken in ("a: [1", "a:\n\t- b", "a: 'x", "a: b: c", "a: @x", "a: 1\nb\n"):
        with pytest.raises(UserError):
            parse_yaml(broken)


def test_a_source_can_be_copied_and_pickled() -> None:
    source = parse_yaml("a: [1, {b: c}]")
    for twin in (pickle.loads(pickle.dumps(source)), copy.deepcopy(source)):
        assert twin.value == source.value
        assert twin.location(("a", 1, "b")) == source.location(("a", 1, "b"))


def test_locations_compare_by_place() -> None:
    assert Location("f", 1, 2, 3, "one") == Location("f", 1, 2, 3, "other")
