from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.errors import WorkflowError
from agentflow.workflow import WorkflowProblemsError, library, load_workflow, parse_workflow

from .samples import GOOD, changed

USING = changed("{model: small, temperature: 0.5}", "{use: agents/answerer.yaml, temperature: 0.5}")
AGENT = "role: worker\nmodel: big\nsystem: Answer.\ntemperature: 1.0\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with workflows/flow.yaml and agents/answerer.yaml; the working folder is elsewhere."""
    for name in ("workflows", "agents", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "workflows" / "flow.yaml").write_text(USING)
    (tmp_path / "agents" / "answerer.yaml").write_text(AGENT)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_a_workflow_is_found_by_path_and_by_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "workflows" / "flow.yaml"
    assert load_workflow(path).file == str(path)
    monkeypatch.chdir(project)
    for ref in ("flow", "workflows/flow", "workflows/flow.yaml", Path("workflows/flow.yaml")):
        assert load_workflow(ref).name == "demo"
    monkeypatch.chdir(project / "workflows")
    assert load_workflow("flow").name == load_workflow("flow.yaml").name == "demo"


def test_shipped_workflows_are_found_from_anywhere(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library_root", lambda: project)
    for ref in ("flow", "flow.yaml", "workflows/flow.yaml", "workflows/flow"):
        assert load_workflow(ref).name == "demo"


def test_the_working_folder_comes_before_the_shipped_library(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library_root", lambda: project)
    Path("flow.yaml").write_text(changed("workflow: demo", "workflow: mine"))
    assert load_workflow("flow").name == "mine"


def test_an_unknown_workflow_names_the_known_ones(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library_root", lambda: project)
    with pytest.raises(WorkflowError, match=r"no workflow 'flaw'\. Did you mean 'flow'\?"):
        load_workflow("flaw")
    for ref in ("", ".", str(project)):
        with pytest.raises(WorkflowError, match="a folder, not a file"):
            load_workflow(ref)
    for ref in ("x" * 5000, "a\0b", "../flow.yaml.yaml"):
        with pytest.raises(WorkflowError, match="there is no workflow"):
            load_workflow(ref)


def test_a_folder_of_the_same_name_does_not_hide_a_workflow(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    (project / "flow").mkdir()
    assert load_workflow("flow").name == "demo"


def test_an_agent_file_is_overridden_key_by_key(project: Path) -> None:
    workflow = load_workflow(project / "workflows" / "flow.yaml")
    agent = workflow.agents["answerer"]
    assert (agent.model, agent.system, agent.temperature) == ("big", "Answer.", 0.5)
    assert [Path(source.file).name for source in workflow.sources] == ["flow.yaml", "answerer.yaml"]


def test_agent_files_are_looked_for_beside_the_workflow_first(project: Path) -> None:
    nearer = project / "workflows" / "agents"
    nearer.mkdir()
    (nearer / "answerer.yaml").write_text("model: nearer\n")
    assert load_workflow(project / "workflows" / "flow.yaml").agents["answerer"].model == "nearer"


def test_agent_files_are_looked_for_in_the_working_folder_then_in_the_library(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "library_root", lambda: project)
    assert parse_workflow(USING).agents["answerer"].model == "big"
    Path("agents").mkdir()
    Path("agents/answerer.yaml").write_text("model: here\n")
    assert parse_workflow(USING).agents["answerer"].model == "here"


def test_places_in_agent_files_are_told_in_the_agent_file(project: Path) -> None:
    workflow = load_workflow(project / "workflows" / "flow.yaml")
    assert str(workflow.location(("agents", "answerer", "system"))).endswith("agents/answerer.yaml:3:9")
    assert str(workflow.location(("agents", "answerer", "temperature"))).endswith("flow.yaml:11:54")
    problem = workflow.problem(("agents", "answerer", "model"), "unknown model 'big'")
    assert problem.path == ("model",)
    assert str(problem.location).endswith("agents/answerer.yaml:2:8")


@pytest.mark.parametrize(
    ("text", "place", "fragment"),
    [
        ("model: m\nsytem: x\n", "2:1", "unknown key 'sytem'. Did you mean 'system'?"),
        ("model: m\nmax_new_tokens: x\n", "2:17", "expected a whole number"),
        ("model: 3\n", "1:8", "expected the name of a model"),
        ("- a\n", "1:1", "an agent file holds a mapping"),
        ("model: m\nuse: other.yaml\n", "2:1", "an agent file names another one with `extends`"),
        ("model: [1\n", "1:8", "this bracket is never closed"),
        ("", "1:1", "the file is empty"),
    ],
)
def test_mistakes_in_an_agent_file_are_told_there(project: Path, text: str, place: str, fragment: str) -> None:
    (project / "agents" / "answerer.yaml").write_text(text)
    with pytest.raises(WorkflowProblemsError) as caught:
        load_workflow(project / "workflows" / "flow.yaml")
    (problem,) = caught.value.problems
    assert str(problem.location).endswith(f"agents/answerer.yaml:{place}")
    assert fragment in str(problem)


def test_a_broken_agent_file_does_not_hide_other_mistakes(project: Path) -> None:
    (project / "agents" / "answerer.yaml").write_text("model: [\n")
    (project / "workflows" / "flow.yaml").write_text(changed("to: each}", "to: eech}", USING))
    with pytest.raises(WorkflowProblemsError) as caught:
        load_workflow(project / "workflows" / "flow.yaml")
    assert len(caught.value.problems) == 2


def test_an_agent_file_without_a_model_takes_the_default_model(project: Path) -> None:
    (project / "agents" / "answerer.yaml").write_text("system: Answer.\n")
    workflow = load_workflow(project / "workflows" / "flow.yaml")
    assert workflow.agents["answerer"].model == "tiny"
    assert str(workflow.location(("agents", "answerer", "model"))).endswith("flow.yaml:7:10")


def test_the_only_end_of_the_graph_is_the_answer() -> None:
    text = changed("task: {name: hotpotqa, answer: answer}", "task: hotpotqa")
    text = changed("  - {from: read, to: each}", "  - {from: each, to: answer}", text)
    workflow = parse_workflow(text)
    assert workflow.task is not None
    assert workflow.task.answer == "answer"


def test_unused_agents_and_several_ends_without_a_task_are_fine() -> None:
    text = changed("task: {name: hotpotqa, answer: answer}\n", "")
    assert parse_workflow(changed("agents:\n", "agents:\n  idle: {model: m}\n", text)).task is None


def test_an_ancestor_may_be_far_above() -> None:
    nodes = "".join(f"  n{i}: {{agent: reader, prompt: '{{{{ nodes.n0.text }}}}'}}\n" for i in range(1, 50))
    edges = "".join(f"  - {{from: n{i}, to: n{i + 1}}}\n" for i in range(49))
    text = "workflow: a\nagents: {reader: {model: m}}\nnodes:\n  n0: {agent: reader, prompt: hi}\n"
    assert len(parse_workflow(f"{text}{nodes}edges:\n{edges}").nodes) == 50


def test_names_that_a_template_defines_itself_are_known() -> None:
    prompt = (
        "{% macro m(x) %}{{ x }}{{ caller() }}{% if x > 1 %}{{ m(0) }}{% endif %}{% endmacro %}"
        "{% call m(1) %}{{ index }}{% endcall %}"
        "{% set y = 1 %}{% for a in inputs.documents %}{{ loop.index }}{{ a }}{{ y }}{% endfor %}"
        "{% with z = 2 %}{{ z }}{% endwith %}{{ range(3) | join }}{{ namespace(k=1).k }}{{ dict(b=1).b }}"
    )
    assert parse_workflow(changed("{{ index }}: {{ document.title }}", prompt))


def test_all_separate_cycles_are_told() -> None:
    text = "workflow: a\nagents: {x: {model: m}}\nnodes:\n"
    text += "".join(f"  {name}: {{agent: x, prompt: hi}}\n" for name in "abcde")
    text += "edges:\n" + "".join(f"  - {{from: {p[0]}, to: {p[1]}}}\n" for p in ("ab", "bc", "ca", "de", "ed", "cd"))
    with pytest.raises(WorkflowProblemsError) as caught:
        parse_workflow(text)
    told = [problem.what for problem in caught.value.problems]
    assert told == ["the edges form a cycle: a -> b -> c -> a", "the edges form a cycle: d -> e -> d"]


def test_ten_thousand_nodes_load_in_seconds() -> None:
    import time

    nodes = "".join(f"  n{i}: {{agent: x, prompt: '{i} {{{{ nodes.n0.text }}}}'}}\n" for i in range(1, 10_000))
    edges = "".join(f"  - {{from: n{i}, to: n{i + 1}}}\n" for i in range(9_999))
    text = f"workflow: a\nagents: {{x: {{model: m}}}}\nnodes:\n  n0: {{agent: x, prompt: hi}}\n{nodes}edges:\n{edges}"
    begin = time.monotonic()
    assert len(parse_workflow(text).nodes) == 10_000
    with pytest.raises(WorkflowProblemsError, match="and 9979 more"):
        parse_workflow(text.replace("from: n", "from: m"))
    assert time.monotonic() - begin < 60


def test_the_good_sample_has_no_problems() -> None:
    assert list(parse_workflow(GOOD).nodes) == ["read", "answer", "each"]
