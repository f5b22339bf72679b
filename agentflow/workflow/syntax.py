"""The YAML parser's own complaints, said so that a person can act on them."""

from __future__ import annotations

import re
from typing import Any

import yaml

from agentflow.workflow.location import Location, split_lines
from agentflow.workflow.problems import Problem, fail

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_GLUED = re.compile(r"\s*(?:- )?([A-Za-z_][\w-]*)(:(?=[^\s:/])|：)")
_QUOTE_IT = "Put the whole value in quotes."

# (part of the parser's message, what is wrong, how to mend it)
_MEANINGS = (
    (
        "mapping values are not allowed",
        "a ': ' where no key can stand",
        "Check the indentation, and put quotes around text that contains ': '.",
    ),
    ("could not find expected ':'", "a key without a ':' after it", "Write `key: value`."),
    (
        "did not find expected key",
        "this line does not line up with the ones above it",
        "Check the indentation and the quotes.",
    ),
    (
        "expected <block end>",
        "this line does not line up with the ones above it",
        "Check the indentation and the quotes.",
    ),
    (
        "did not find expected '-' indicator",
        "this line does not line up with the list above it",
        "Start it with '- ' at the same column as the other items.",
    ),
    (
        "block sequence entries are not allowed",
        "a list item ('- ') where none can stand",
        "Put the list on lines of its own below its key.",
    ),
    (
        "unknown escape character",
        "an unknown escape after '\\' in double quotes",
        "Use single quotes, or write the backslash twice.",
    ),
    ("did not find expected <document start>", "text after the end of the document", "Remove it."),
    (
        "did not find expected node content",
        "a value is missing here",
        "Write it, or close a bracket that is still open.",
    ),
    ("nesting depth", "too large: nested more than 40 levels deep", "Split the workflow."),
    ("undefined tag handle", "a tag that is not declared", _QUOTE_IT),
    ("incompatible YAML document", "this version of YAML is not read", "Remove the line: it is not needed."),
    ("unknown directive", "a line that starts with '%'", _QUOTE_IT),
)


def check_characters(text: str, file: str) -> None:
    """Refuse control characters and half surrogates, as YAML does. Raises `WorkflowProblemsError`."""
    found = _UNPRINTABLE.search(text)
    if found is None:  # a byte order mark may open the file, nowhere else; `parse_yaml` has taken it off
        return
    before = split_lines(text[: found.start()])
    place = Location(file, len(before), len(before[-1]) + 1, 1)
    fail(place, f"the character U+{ord(found[0]):04X} is not allowed in YAML", "Remove or escape it.")


def syntax_problem(error: yaml.YAMLError, lines: list[str], file: str) -> Problem:
    """Translate an error of the parser into a problem at its place."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    message = str(getattr(error, "problem", None) or "this is not valid YAML")
    context = str(getattr(error, "context", None) or "")
    opened = getattr(error, "context_mark", None)
    for number, line in enumerate(lines):
        if line.startswith("<<<<<<< "):
            what, fix = "a merge conflict was left in the file", "Resolve it, and remove the marks."
            return Problem(Location(file, number + 1, 1, 7, line), (), what, fix)
    if opened is not None and _is_unclosed(message, context):
        if "quoted" in context:
            return Problem(_place(opened, lines, file), (), "this quote is never closed", "Close it.")
        if "expected ','" in message and mark is not None and mark.line == opened.line:
            return Problem(_place(mark, lines, file), (), "a ',' or a closing bracket is missing before this")
        fix = "Close it; look at the quotes in it as well."
        return Problem(_place(opened, lines, file), (), "this bracket is never closed", fix)
    glued = _glued_key(message, mark, lines)
    if glued is not None:
        number, column, sign = glued
        what = "a blank is missing after this ':'" if sign == ":" else f"'{sign}' is no ':'"
        return Problem(Location(file, number + 1, column + 1, 1, lines[number]), (), what, "Write `key: value`.")
    what, fix = _meaning(message, context, _character(mark, lines), lines, mark)
    return Problem(_place(mark, lines, file), (), what, fix)


def _glued_key(message: str, mark: Any, lines: list[str]) -> tuple[int, int, str] | None:
    """Find `key:value`, which YAML reads as a text, on the line before the one where the parser stumbles."""
    if mark is None or ("mapping values are" not in message and "could not find expected" not in message):
        return None
    above = [n for n in range(min(mark.line, len(lines) - 1), -1, -1) if lines[n].strip()][:2]
    for number in above:
        found = _GLUED.match(lines[number])
        if found:
            return number, found.start(2), found[2]
    return None


def _is_unclosed(message: str, context: str) -> bool:
    if "quoted scalar" in context:
        return "end of stream" in message or "document indicator" in message
    return "flow" in context and ("expected ','" in message or "<stream end>" in message)


def _meaning(message: str, context: str, character: str, lines: list[str], mark: Any) -> tuple[str, str]:
    if "cannot start any token" in message:
        if character == "\t":
            return "a tab is used for indentation", "Use spaces."
        return f"a value can't start with '{character}'", _QUOTE_IT
    if mark is not None and mark.line < len(lines) and "\t" in _indent(lines[mark.line]):
        return "a tab is used for indentation", "Use spaces."
    for part, what, fix in _MEANINGS:
        if part in message:
            return what, fix
    return f"{message} ({context})" if context else message, ""


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _character(mark: Any, lines: list[str]) -> str:
    if mark is None or mark.line >= len(lines):
        return ""
    return lines[int(mark.line)][int(mark.column) :][:1]


def _place(mark: Any, lines: list[str], file: str) -> Location:
    if mark is None:
        return Location(file, 1, 1, 1, lines[0])
    line, column = mark.line, mark.column
    if line >= len(lines) or (line == len(lines) - 1 and not lines[line] and line):
        line = len(lines) - 1
        while line and not lines[line].strip():
            line -= 1
        column = len(lines[line])
    return Location(file, line + 1, column + 1, 1, lines[line])
