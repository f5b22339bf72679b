"""Whatever is written, the answer is a workflow or an error a person can act on."""

from __future__ import annotations

import contextlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import UserError, WorkflowError
from agentflow.workflow import Workflow, evaluate, parse_workflow, parse_yaml, render

from .samples import GOOD

PIECES = st.sampled_from(
    [
        "{", "}", "[", "]", ":", ": ", "- ", "\n", "  ", "\t", "#", "&a", "*a", "!", "!!str ", "|", ">", "'", '"',
        "{{", "}}", "{%", "%}", "~", "null", "true", "<<", "?", ",", "%", "@", "\\", "\0", "\ufeff", "é", "𝕏",
        "nodes", "inputs", "1e5", "-1", "read", "use", "\u2028", "---\n", "...\n", "\ud800", "x" * 200,
    ]
)  # fmt: skip
WORDS = [word for line in GOOD.splitlines() for word in line.split()]
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def load(text: str) -> None:
    try:
        assert isinstance(parse_workflow(text, "fuzz.yaml"), Workflow)
    except WorkflowError as error:
        assert "fuzz.yaml:" in str(error)  # noqa: PT017 (an outcome among two)


@QUICK
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join)))
def test_any_text_loads_or_is_refused(text: str) -> None:
    load(text)


@QUICK
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), PIECES), min_size=1, max_size=4))
def test_any_edit_of_a_good_workflow_loads_or_is_refused(edits: list[tuple[int, int, str]]) -> None:
    text = GOOD
    for at, cut, piece in edits:
        text = text[:at] + piece + text[at + cut :]
    load(text)


@QUICK
@given(st.lists(st.tuples(st.integers(0, len(WORDS) - 1), st.sampled_from(WORDS)), min_size=1, max_size=3))
def test_any_words_put_elsewhere_load_or_are_refused(swaps: list[tuple[int, str]]) -> None:
    text = GOOD
    for which, other in swaps:
        text = text.replace(WORDS[which], other, 1)
    load(text)


@QUICK
@given(st.integers(0, GOOD.count("\n")), st.integers(0, 6), st.integers(-4, 4))
def test_any_lines_lost_or_shifted_load_or_are_refused(first: int, count: int, shift: int) -> None:
    lines = GOOD.splitlines()
    moved = [" " * max(0, shift) + line[max(0, -shift) :] for line in lines[first : first + count]]
    load("\n".join([*lines[:first], *moved, *lines[first + count :]]))
    load("\n".join([*lines[:first], *lines[first + count :]]))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["workflow", "description", "inputs", "defaults", "agents", "nodes", "edges", "outputs", "task"]


@QUICK
@given(st.sampled_from(KEYS), st.sampled_from(["", "read", "answer", "question", "0"]), VALUES)
def test_any_value_anywhere_loads_or_is_refused(key: str, inner: str, value: object) -> None:
    import yaml

    data = parse_yaml(GOOD).value
    if inner and isinstance(data[key], dict):
        data[key][inner] = value
    elif inner and isinstance(data[key], list):
        data[key][0] = value
    else:
        data[key] = value
    load(yaml.safe_dump(data, allow_unicode=True))


TEMPLATE_PIECES = st.sampled_from(
    [
        "{{", "}}", "{%", "%}", "{#", "#}", " for x in ", " endfor ", " if ", " endif ", "inputs", ".a", "['a']", "|",
        "join", "map", "(", ")", "[", "]", "1", "*", "**", "~", "'", '"', " set x = ", "-", "loop", "x", " not ", "is ",
        "defined", "\n", "range(9)", ",", "macro m()", "endmacro", "raw", "endraw", "%", "{", "}", "__class__",
    ]
)  # fmt: skip


@QUICK
@given(st.lists(TEMPLATE_PIECES, max_size=25).map("".join))
def test_any_template_renders_or_is_refused(template: str) -> None:
    context = {"inputs": {"a": [1, "b", {"c": None}]}, "x": 1}
    with contextlib.suppress(UserError):
        assert isinstance(render(template, context), str)
    with contextlib.suppress(UserError):
        evaluate(template, context)
