"""What an editor is told: every good file is accepted, every mistake of form is seen, and nothing is a false alarm."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft7Validator

from agentflow.errors import UserError
from agentflow.runtime.binding import bind
from agentflow.runtime.editor_schema import KINDS, editor_schema
from agentflow.workflow import library, parse_workflow, parse_yaml, read_yaml
from tests.cli.conftest import FACTS, QUESTION, ROOT
from tests.workflow.corpus import BROKEN, FILES
from tests.workflow.samples import GOOD
from tests.workflow.test_extends import BASE, CHILD
from tests.workflow.test_fuzz_shipped import QUICK, changed_trees

SCHEMAS = {kind: editor_schema(kind, built_in=True) for kind in KINDS}
VALIDATORS = {kind: Draft7Validator(schema) for kind, schema in SCHEMAS.items()}
FOLDERS = {"workflow": "workflows", "agent": "agents", "model": "configs/models"}
SHIPPED = [(kind, path) for kind, folder in FOLDERS.items() for path in sorted((ROOT / folder).glob("*.yaml"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = [body for page in PAGES for body in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)]

# Mistakes that have the form of a right file: what a name or a template means is for `agentflow validate`.
OF_MEANING = re.compile(
    r"(bind/(cache_between_models|model_unknown|memory_|tool_)|sub_(?!with_)|loop_of_nothing|choose_(unknown|code)"
    r"|extends_|tool_argument_|cycle_|edges_to|order_|path_(?!empty)|template_"
    r"|missing_(input|model_of)|name_of_(agent_as_node|item_input|node_in_capitals)|type_default_"
    r"|type_temperature_(nan|too_large)).*"  # JSON has neither
)


def complaints(kind: str, value: object) -> list[str]:
    return [f"{list(error.path)}: {error.message[:200]}" for error in VALIDATORS[kind].iter_errors(value)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_a_schema_and_what_the_command_prints(kind, cli) -> None:
    Draft7Validator.check_schema(SCHEMAS[kind])
    printed = cli("schema", kind)
    assert printed.code == 0
    assert printed.json["title"] == f"AgentFlow {kind} file"
    assert set(json.loads(printed.out)) == set(SCHEMAS[kind])


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_everything_that_ships_is_accepted(kind, path) -> None:
    assert complaints(kind, read_yaml(path).value) == []


@pytest.mark.parametrize("text", [FACTS, QUESTION, BASE, CHILD, *WRITTEN])
def test_workflows_of_the_documents_and_tests_are_accepted(text) -> None:
    value = parse_yaml(text).value
    if isinstance(value, dict) and {"nodes", "extends"} & set(value):
        assert complaints("workflow", value) == []


def readable() -> list[str]:
    """Files of the corpus that are YAML; of others an editor has other things to say."""
    found = []
    for name in FILES:
        try:
            read_yaml(BROKEN / name)
        except UserError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("name", readable())
def test_mistakes_of_form_are_seen_and_those_of_meaning_are_not(name) -> None:
    found = complaints("workflow", read_yaml(BROKEN / name).value)
    assert bool(found) != bool(OF_MEANING.fullmatch(name)), found


@pytest.mark.parametrize(
    ("old", "new", "is_right"),
    [
        ("question: string", "question: {type: string, description: x}", True),
        ("question: string", "question: text", False),
        ("channel: cache", "channel: {name: text, scope: answer}", True),
        ("channel: cache", "channel: {name: text, settings: {scope: answer}}", True),
        ("channel: cache", "channel: {name: cache, scope: answer}", False),
        ("channel: cache", "channel: {name: text, settings: {scpe: answer}}", False),
        ("max_new_tokens: 0", "retry: 2", True),
        ("max_new_tokens: 0", "retry: {count: 2, on: timeout}", True),
        ("max_new_tokens: 0", "retry: {count: 2, on: [timeout, model]}", True),
        ("max_new_tokens: 0", "retry: {on: timeout}", False),
        ("max_new_tokens: 0", "on_error: skip", True),
        ("max_new_tokens: 0", "on_error: {fallback: x}", True),
        ("max_new_tokens: 0", "on_error: {action: skip}", False),
        ("max_new_tokens: 0", "stop: x", True),
        ("max_new_tokens: 0", "stop: [x, y]", True),
        ("max_new_tokens: 0", "stop: []", False),
        ("max_new_tokens: 0", "max_new_tokens: null", True),
        ("system: Read.", "extends: answerer", True),
        ("model: small", "model: {use: smollm2-135m, dtype: float16}", True),
        ("model: small", "model: {dtype: float16}", False),
        ("task: {name: hotpotqa, answer: answer}", "task: hotpotqa", True),
        ("task: {name: hotpotqa, answer: answer}", "task: {name: hotpotqa, setting: split}", True),
        ("task: {name: hotpotqa, answer: answer}", "task: {name: hotpotqa, setting: splt}", False),
        ("task: {name: hotpotqa, answer: answer}", "task:", True),
    ],
)
def test_short_and_long_forms_are_known(old, new, is_right) -> None:
    assert GOOD.count(old) == 1
    found = complaints("workflow", parse_yaml(GOOD.replace(old, new)).value)
    assert bool(found) != is_right, found


@pytest.mark.parametrize(
    ("kind", "text", "is_right"),
    [
        ("agent", "extends: reader\nsystem: x\n", True),
        ("agent", "use: reader.yaml\n", False),
        ("agent", "model: tiny\nrole: boss\n", False),
        ("model", "model: mine\nextends: smollm2-135m\n", True),
        ("model", "model: mine\n", False),
        ("model", "source: a/b\n", False),
        ("model", "model: mine\nsource: a/b\ndtype: int8\n", False),
    ],
)
def test_agent_and_model_files_are_known(kind, text, is_right) -> None:
    assert bool(complaints(kind, parse_yaml(text).value)) != is_right


@QUICK
@given(changed_trees())
def test_what_an_editor_refuses_is_refused_by_validate(tree) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
    try:
        value = parse_yaml(text).value
    except UserError:
        return
    # Settings of plug-ins are converted where it is clear what is meant; an editor asks for the plain form.
    found = [c for c in complaints("workflow", value) if "'task'" not in c and "'channel'" not in c]
    if found:
        with pytest.raises(UserError):
            bind(parse_workflow(text, folder=library.library_root() / "workflows"))


def test_an_unknown_kind_is_told(cli) -> None:
    ended = cli("schema", "workflw")
    assert ended.code == 2
    assert "Did you mean 'workflow'?" in ended.err
