"""A tool's parameters are checked before and when it is called; what it gives is plain JSON of bounded size."""

from __future__ import annotations

from typing import Literal

import pytest

from agentflow.errors import UserError
from agentflow.tools import Tool, Toolbox
from agentflow.tools.arithmetic import calculate
from agentflow.tools.base import LARGEST_RESULT, text_of


def join(words: list[str], between: Literal[" ", "-"] = " ", *, times: int = 1) -> str:
    return between.join(words) * times


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, start: int) -> int:
        self.calls += 1
        return start + self.calls


def untyped(word):
    return word


def many(*words: str) -> str:
    return "".join(words)


def odd(thing: Tool) -> str:
    return thing.name


async def later(word: str) -> str:
    return word


def test_arguments_are_given_by_name_and_defaults_hold():
    assert Tool.of(join)({"words": ["a", "b"], "between": "-"}) == "a-b"
    assert Tool.of(join)({"words": ["a", "b"], "times": 2}) == "a ba b"


def test_a_tool_may_be_an_object_that_keeps_something():
    tool = Tool.of(Counter(), "counter")
    assert [tool({"start": 10}), tool({"start": 10})] == [11, 12]
    assert tool.name == "counter"


def test_unknown_and_missing_arguments_are_told_with_the_likely_name():
    found = list(Tool.of(join).misuses({"word": []}))
    assert [(m.argument, m.fix) for m in found] == [("word", "Did you mean 'words'?"), (None, "Add `words: ...`.")]
    with pytest.raises(UserError, match="takes no argument 'word'"):
        Tool.of(join)({"word": []})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"words": "a"}, "'words'.*valid array"),
        ({"words": ["a", 1]}, r"\[1\]: input should be a valid string"),
        ({"words": [], "times": "2"}, "'times'.*valid integer"),
        ({"words": [], "between": "+"}, "'between'.*' ' or '-'"),
        ({"words": [{1, 2}]}, "'words'"),
    ],
)
def test_values_are_never_converted(arguments, words):
    with pytest.raises(UserError, match=words):
        Tool.of(join)(arguments)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (untyped, "'word' of the tool 'untyped' has no type"),
        (many, "can't be given by name"),
        (odd, "is not JSON's"),
        (later, "no plain function"),
        (3, "no plain function"),
    ],
)
def test_what_can_not_be_a_tool_is_refused(function, words):
    with pytest.raises(UserError, match=words):
        Tool.of(function)


@pytest.mark.parametrize("value", [None, True, 3, 0.5, "text", [1, [2]], {"a": {"b": None}}])
def test_results_are_plain_json(value):
    def give() -> object:
        return value

    assert Tool.of(give)({}) == value


def test_tuples_become_lists_and_what_is_no_json_is_refused():
    def pair() -> tuple[int, int]:
        return (1, 2)

    def infinite() -> float:
        return float("inf")

    def large() -> str:
        return "x" * LARGEST_RESULT

    assert Tool.of(pair)({}) == [1, 2]
    for function, words in ((infinite, "no JSON"), (lambda: {1}, "no JSON"), (large, "are the most")):
        with pytest.raises(UserError, match=words):
            Tool.of(function, "it")({})


def test_a_result_reads_as_its_text():
    assert text_of("as it is") == "as it is"
    assert text_of({"text": "said", "done": True}) == "said"
    assert text_of({"done": True}) == '{"done": true}'
    assert text_of(["ä"]) == '["ä"]'


def test_a_changed_function_is_another_tool():
    def first(x: int) -> int:
        return x

    def second(x: int) -> int:
        return x + 1

    assert Tool.of(first, "f").mark != Tool.of(second, "f").mark
    assert Tool.of(first, "f").mark == Tool.of(first, "f").mark


# -- where tools come from ------------------------------------------------------------------------------------


def test_installed_tools_come_through_an_entry_point():
    assert "calculate" in Toolbox().names
    assert Toolbox().get("calculate")({"expression": "2 * (3 + 4)"}) == 14


def test_an_unknown_tool_is_told_with_the_likely_name():
    with pytest.raises(UserError, match="Unknown tool 'calculat'") as caught:
        Toolbox().get("calculat")
    assert caught.value.fix == "Did you mean 'calculate'?"


def test_a_file_gives_its_public_functions_and_nothing_that_it_imports(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\nfrom json import loads\n\n"
        "def double(x: int) -> int:\n    return _times(x)\n\ndef _times(x: int) -> int:\n    return 2 * x\n"
    )
    box = Toolbox.from_file(file)
    assert set(box.names) - set(Toolbox().names) == {"double"}
    assert box.get("double")({"x": 4}) == 8


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "no such Python file"),
        ("x = 1", "defines no tools"),
        ("def f(x): return x", "has no type"),
        ("def broken(", "can't be loaded: SyntaxError"),
        ("raise RuntimeError('no')", "can't be loaded: RuntimeError: no"),
        ("def calculate(expression: str) -> int: return 1", "There is a tool 'calculate' already"),
    ],
)
def test_a_file_that_gives_no_tools_is_told_by_name(tmp_path, source, words):
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(UserError, match=words) as caught:
        Toolbox.from_file(file)
    assert "mine.py" in (caught.value.where or "")


def test_a_toolbox_closes_what_its_tools_hold():
    class Held:
        open = True

        def __call__(self) -> int:
            return 1

        def close(self) -> None:
            self.open = False

    held = Held()
    held.__name__ = "held"
    with Toolbox([held]) as box:
        assert box.get("held")({}) == 1
    assert held.open is False


# -- calculate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2 * 3", 7), (" -(2 ** 10) ", -1024), ("7 // 2", 3), ("7 % 4", 3), ("1 / 4", 0.25), ("10 ** 400", 10**400)],
)
def test_arithmetic(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "1 +", "a + 1", "__import__('os')", "True + 1", "1 / 0", "9 ** 9 ** 9", "10 ** 400 * 1.0", "'a' * 3"),
        *("(-8) ** 0.5", "1e308 * 10", "(" * 300 + "1" + ")" * 300, "1" * 1001, "9999 ** 9999"),
    ],
)
def test_arithmetic_refuses_what_is_no_number_and_what_is_too_large(expression):
    with pytest.raises(ValueError, match=r"expression|computed|large|number|characters"):
        calculate(expression)
