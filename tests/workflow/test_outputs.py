"""Answers in JSON: which schemas a workflow may write, and which answers fit."""

from __future__ import annotations

import pytest

from agentflow.errors import WorkflowError
from agentflow.workflow.loader import parse_workflow
from agentflow.workflow.outputs import AnswerError, parse_answer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ages": {"type": "array", "items": {"$ref": "#/$defs/age"}}},
    "required": ["name"],
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}
WORKFLOW = """
workflow: w
agents: {a: {model: tiny}}
nodes:
  one:
    agent: a
    prompt: x
    output:
      schema:
        type: object
        properties: {n: {type: integer}, more: {$ref: "#/$defs/m"}}
        $defs: {m: {type: string}}
      attempts: 2
"""


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann"}',
        ' {"name": "Ann"}\n',
        '```json\n{"name": "Ann"}\n```',
        'Here it is:\n```\n{"name": "Ann"}\n```\nWell?',
    ],
)
def test_json_alone_or_in_a_fenced_block_is_read(text):
    assert parse_answer(text, SCHEMA) == {"name": "Ann"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON: expecting value at line 1, column 1"),
        ('Sure! {"name": "Ann"}', "no JSON"),
        ('{"name": "Ann"', "no JSON"),
        ('{"name": NaN}', "NaN is no JSON number"),
        ("[" * 100_000, "no JSON"),
        ("{}", "'name' is a required property"),
        ('{"name": 3}', "at name: 3 is not of type 'string'"),
        ('{"name": "Ann", "ages": [3, -1]}', r"at ages\[1\]: -1 is less than the minimum of 0"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said_in_words(text, words):
    with pytest.raises(AnswerError, match=words):
        parse_answer(text, SCHEMA)


def test_long_complaints_are_cut():
    with pytest.raises(AnswerError) as caught:
        parse_answer('{"name": ["' + "x" * 5000 + '"]}', SCHEMA)
    assert len(str(caught.value)) < 400


def test_a_good_schema_loads():
    assert parse_workflow(WORKFLOW).agent_node("one").output.attempts == 2


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("type: object", "type: objekt", "10:15", "'objekt' is not valid"),
        ("{type: integer}", "{type: integer, minimum: low}", "11:50", "'low' is not of type 'number'"),
        ('"#/$defs/m"', '"#/$defs/n"', "11:55", "'#/$defs/n' is not in this schema"),
        ('"#/$defs/m"', '"https://example.org/s.json"', "11:55", "is not in this schema"),
        ('"#/$defs/m"', "other.json", "11:55", "Write `#/$defs/NAME`"),
        ("type: object", "$schema: http://json-schema.org/draft-07/schema#", "10:18", "only schemas of draft 2020-12"),
        ("attempts: 2", "attempts: 0", "13:17", "a number of at least 1"),
        ("attempts: 2", "atempts: 2", "13:7", "Did you mean 'attempts'?"),
        ("schema:", "shema:", "9:7", "Did you mean 'schema'?"),
    ],
)
def test_a_wrong_schema_is_told_at_its_place(old, new, place, words):
    assert WORKFLOW.count(old) == 1
    with pytest.raises(WorkflowError) as caught:
        parse_workflow(WORKFLOW.replace(old, new))
    assert f"<text>:{place}" in str(caught.value)
    assert words in str(caught.value)
