"""The workflows that ship, changed at random: each gives a workflow, or problems with places inside a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.workflow import Workflow, WorkflowProblemsError, library, load_workflow, parse_yaml
from agentflow.workflow.location import split_lines

ROOT = library.library_root()
SHIPPED = [ROOT / "workflows" / f"{name}.yaml" for name in library.shipped("workflows")]
TEXTS = [path.read_bytes() for path in SHIPPED]
BYTES = st.sampled_from([b":", b"- ", b"\n", b" ", b"\t", b"{", b"}", b"[", b"]", b"'", b'"', b"#", b"&", b"*", b"!",
                         b"|", b"%", b"{{", b"}}", b"{%", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\r", b"<<: ",
                         b"---\n", b"__class__", b"9" * 400, b"", b"\xe2\x80\xa8"])  # fmt: skip
VALUES = st.sampled_from([None, True, -1, 0, 1.5, float("inf"), float("nan"), "", "x", "../..", "{{ x", "nodes", [],
                          {}, ["x"], {"name": "text"}, {"use": "agents/reader.yaml"}, {"": 1}, 10**400])  # fmt: skip
KEYS = ["workflow", "agents", "nodes", "edges", "inputs", "prompt", "agent", "use", "model", "map", "over", "when",
        "retry", "on_error", "channel", "name", "from", "to", "task", "fixed", "x", "", "<<", "0"]  # fmt: skip
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def load(data: bytes) -> None:
    """Load a file of these bytes; every problem must lie within the file that it names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.yaml"
        path.write_bytes(data)
        try:
            assert isinstance(load_workflow(path), Workflow)
        except WorkflowProblemsError as error:
            assert error.problems  # noqa: PT017 (an outcome among two)
            for problem in error.problems:
                check_place(problem.location, path)
                assert problem.what.strip()


def check_place(place, path: Path) -> None:
    assert place.file == str(path) or Path(place.file).is_relative_to(ROOT / "agents")
    lines = split_lines(Path(place.file).read_bytes().decode("utf-8", errors="replace").removeprefix("\ufeff"))
    assert 1 <= place.line <= len(lines)
    assert 1 <= place.column <= len(lines[place.line - 1]) + 1
    assert place.length >= 1


@QUICK
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), BYTES), min_size=1, max_size=4),
)
def test_bytes_lost_or_put_in_anywhere(text: bytes, edits: list[tuple[float, int, bytes]]) -> None:
    for where, cut, piece in edits:
        at = int(where * len(text))
        text = text[:at] + piece + text[at + cut :]
    load(text)


@QUICK
@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=3))
def test_lines_moved_or_doubled(text: bytes, moves: list[tuple[float, float, bool]]) -> None:
    lines = text.split(b"\n")
    for start, end, copied in moves:
        taken = int(start * (len(lines) - 1))
        line = lines[taken] if copied else lines.pop(taken)
        lines.insert(int(end * len(lines)), line)
    load(b"\n".join(lines))


@st.composite
def changed_trees(draw: st.DrawFn) -> Any:
    """A shipped workflow with one to three keys or values replaced, at any depth."""
    tree = parse_yaml(draw(st.sampled_from(TEXTS)).decode()).value
    for _ in range(draw(st.integers(1, 3))):
        holder = tree
        for _ in range(draw(st.integers(0, 3))):
            inner = [v for v in (holder.values() if isinstance(holder, dict) else holder) if isinstance(v, dict | list)]
            inner = [v for v in inner if v]
            if not inner:
                break
            holder = draw(st.sampled_from(inner))
        if not holder:
            continue
        if isinstance(holder, dict):
            key = draw(st.sampled_from(sorted(holder, key=str)))
            if draw(st.booleans()):
                holder[draw(st.sampled_from(KEYS))] = holder.pop(key)
            else:
                holder[key] = draw(VALUES)
        else:
            holder[draw(st.integers(0, len(holder) - 1))] = draw(VALUES)
    return tree


@QUICK
@given(changed_trees())
def test_keys_and_values_replaced_at_every_depth(tree: Any) -> None:
    load(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode())


def test_what_ships_is_good_as_it_stands() -> None:
    for text in TEXTS:
        load(text)
    assert len(SHIPPED) >= 5
