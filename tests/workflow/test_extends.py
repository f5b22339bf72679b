"""`extends`: workflows, agents, agent files and configs take from others what they don't say themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.models.spec import resolve_model
from agentflow.workflow import Workflow, WorkflowProblemsError, load_workflow, parse_workflow
from agentflow.workflow.lineage import MOST_FILES

BASE = """\
workflow: base
inputs: {question: string}
defaults: {model: tiny, temperature: 0.5, max_new_tokens: 8}
agents:
  reader: {system: Read., top_k: 5}
  answerer: {extends: reader, system: Answer.}
nodes:
  read: {agent: reader, prompt: "{{ inputs.question }}", max_new_tokens: 0}
  answer: {agent: answerer, prompt: hi, max_new_tokens: 4}
edges:
  - {from: read, to: answer}
outputs: {answer: "{{ nodes.answer.text }}"}
"""
CHILD = """\
extends: base.yaml
workflow: child
defaults: {temperature: 0.1}
agents:
  answerer: {model: large}
nodes:
  answer: {max_new_tokens: 9}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    Path("child.yaml").write_text(CHILD)
    Path("agents").mkdir()
    return tmp_path


def problems(text: str, file: str = "flow.yaml") -> list[str]:
    Path(file).write_text(text)
    with pytest.raises(WorkflowProblemsError) as caught:
        load_workflow(file)
    return [str(problem).splitlines()[0] for problem in caught.value.problems]


def place(workflow: Workflow, *path: str | int) -> str:
    return str(workflow.location(path))


def test_an_agent_takes_from_another_one_what_it_does_not_say() -> None:
    agents = parse_workflow(BASE).agents
    assert (agents["answerer"].system, agents["answerer"].top_k, agents["answerer"].model) == ("Answer.", 5, "tiny")
    assert (agents["reader"].system, agents["reader"].top_k) == ("Read.", 5)


def test_agents_extend_one_another_in_a_row_whatever_their_order() -> None:
    text = BASE.replace("agents:\n", "agents:\n  last: {extends: answerer, top_k: 7}\n")
    last = parse_workflow(text).agents["last"]
    assert (last.system, last.top_k) == ("Answer.", 7)


def test_a_workflow_is_merged_by_name_and_key_over_the_one_that_it_extends(folder: Path) -> None:
    child = load_workflow("child.yaml")
    assert (child.name, list(child.nodes), len(child.edges)) == ("child", ["read", "answer"], 1)
    assert (child.agents["answerer"].model, child.agents["answerer"].system) == ("large", "Answer.")
    assert child.agents["reader"].model == "tiny"
    assert child.effective("answer").settings == {"max_new_tokens": 9, "temperature": 0.1, "top_k": 5}
    assert child.effective("read").max_new_tokens == 0
    assert [Path(source.file).name for source in child.sources] == ["child.yaml", "base.yaml"]


def test_what_is_no_section_is_replaced_as_a_whole(folder: Path) -> None:
    Path("flow.yaml").write_text("extends: base\nedges: []\ndefaults: {model: {source: a/b}}\n")
    flow = load_workflow("flow")
    assert (flow.name, flow.edges, flow.agents["reader"].model) == ("base", (), {"source": "a/b"})


def test_every_value_is_located_where_it_was_written(folder: Path) -> None:
    child = load_workflow("child.yaml")
    assert place(child, "nodes", "answer", "max_new_tokens") == "child.yaml:7:28"
    assert place(child, "nodes", "answer", "prompt") == "base.yaml:9:37"
    assert place(child, "agents", "answerer", "model") == "child.yaml:5:21"
    assert place(child, "agents", "answerer", "system") == "base.yaml:6:39"
    assert place(child, "agents", "answerer", "top_k") == "base.yaml:5:34"
    assert place(child, "agents", "reader", "model") == "base.yaml:3:19"
    assert place(child, "defaults", "temperature") == "child.yaml:3:25"
    assert place(child, "defaults", "max_new_tokens") == "base.yaml:3:59"
    assert place(child, "edges", 0, "to") == "base.yaml:11:22"


def test_mistakes_are_told_in_the_file_that_makes_them(folder: Path) -> None:
    Path("base.yaml").write_text(BASE.replace("top_k: 5", "top_k: five").replace("agent: answerer", "agnt: answerer"))
    assert problems(CHILD.replace("max_new_tokens: 9", "max_new_tokens: nine")) == [
        "base.yaml:5:34 – agents.reader.top_k: expected a whole number, got the text 'five'.",
        "base.yaml:9:12 – nodes.answer.agnt: unknown key 'agnt'. Did you mean 'agent'?",
        "flow.yaml:7:28 – nodes.answer.max_new_tokens: expected a whole number, got the text 'nine'.",
    ]


def test_an_agent_file_extends_another_one(folder: Path) -> None:
    Path("agents/polite.yaml").write_text("extends: reader\nsystem: Please read.\n")
    Path("agents/reader.yaml").write_text("model: tiny\nsystem: Read.\ntop_k: 3\n")
    Path("flow.yaml").write_text(BASE.replace("{system: Read., top_k: 5}", "{use: agents/polite.yaml, temperature: 1}"))
    flow = load_workflow("flow.yaml")
    reader = flow.agents["reader"]
    assert (reader.system, reader.top_k, reader.temperature, reader.model) == ("Please read.", 3, 1, "tiny")
    assert flow.agents["answerer"].top_k == 3
    assert place(flow, "agents", "answerer", "top_k") == "agents/reader.yaml:3:8"
    assert place(flow, "agents", "reader", "system") == "agents/polite.yaml:2:9"


def test_a_shipped_workflow_can_be_extended_by_name(folder: Path) -> None:
    Path("flow.yaml").write_text("extends: hotpotqa\nworkflow: mine\nagents: {planner: {model: tiny}}\n")
    flow = load_workflow("flow.yaml")
    assert flow.agents["planner"].model == "tiny"
    assert "note which facts" in flow.agents["planner"].system
    assert flow.task is not None
    assert flow.task.answer == "answer"


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        (
            "reader: {extends: answerer}\n  answerer: {extends: reader}",
            "6:23 – agents.answerer.extends: agents extend one another in a circle: reader -> answerer -> reader.",
        ),
        (
            "reader: {extends: reader}",
            "5:21 – agents.reader.extends: agents extend one another in a circle: reader -> ",
        ),
    ],
)
def test_a_circle_of_agents_is_told_once_as_a_chain(folder: Path, agents: str, told: str) -> None:
    head, _, rest = BASE.partition("reader: {system: Read., top_k: 5}\n  answerer: {extends: reader, system: Answer.}")
    found = problems(f"{head}{agents}{rest}")
    assert [line for line in found if "circle" in line] == [line for line in found if told in line]
    assert len([line for line in found if "circle" in line]) == 1


def test_a_circle_of_files_is_told_as_a_chain(folder: Path) -> None:
    Path("base.yaml").write_text("extends: child.yaml\n" + BASE)
    (told,) = problems(CHILD, "child.yaml")
    assert told.startswith(
        "base.yaml:1:10 – extends: files extend one another in a circle: child.yaml -> base.yaml -> c"
    )
    Path("agents/a.yaml").write_text("extends: b\n")
    Path("agents/b.yaml").write_text("extends: a\n")
    (told,) = problems(BASE.replace("{system: Read., top_k: 5}", "{use: agents/a.yaml}"))
    assert told.startswith("agents/b.yaml:1:10 – extends: files extend one another in a circle: ")
    assert told.endswith("agents/a.yaml -> agents/b.yaml -> agents/a.yaml. Remove one `extends`.")


def test_a_line_of_files_has_an_end(folder: Path) -> None:
    for number in range(MOST_FILES + 1):
        Path(f"f{number}.yaml").write_text(f"extends: f{number + 1}.yaml\n")
    (told,) = problems("extends: f0.yaml\n")
    assert f"more than {MOST_FILES} files extend one another" in told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("extends: reader", "extends: readr", "6:23 – agents.answerer.extends: unknown agent 'readr'. Did you mean"),
        ("extends: reader", "extends: 3", "6:23 – agents.answerer.extends: expected the name of an agent"),
        ("extends: reader", "extends: agents/reader.yaml", "Write `use: agents/reader.yaml` for an agent of a file."),
        ("extends: reader", "extends: reader, use: x.yaml", "6:23 – agents.answerer.extends: an agent takes its keys"),
        ("workflow: base", "workflow: base\nextends: bas", "2:10 – extends: there is no workflow 'bas'. Did you mean"),
        ("workflow: base", "workflow: base\nextends: [base]", "2:10 – extends: expected the name of a workflow"),
        ("workflow: base", "workflow: base\nextends: ../base.yaml", "2:10 – extends: the path '../base.yaml' leaves"),
        ("workflow: base", "workflow: base\nextends: agents/list.yaml", "list.yaml:1:1 – a workflow is a mapping"),
        ("workflow: base", "workflow: base\nextnds: base.yaml", "2:1 – extnds: unknown key 'extnds'. Did you mean"),
    ],
)
def test_wrong_names_are_told_at_their_place(folder: Path, old: str, new: str, told: str) -> None:
    Path("agents/list.yaml").write_text("- a\n")
    assert any(told in line for line in problems(BASE.replace(old, new)))


def test_a_model_config_extends_another_one(folder: Path) -> None:
    Path("configs/models").mkdir(parents=True)
    Path("configs/models/half.yaml").write_text("model: half\nextends: smollm2-135m\ndtype: float16\n")
    half, whole = resolve_model("half"), resolve_model("smollm2-135m")
    assert (half.model, half.dtype, half.source, half.wheel) == ("half", "float16", whole.source, whole.wheel)
    Path("configs/models/third.yaml").write_text("model: third\nextends: half\n")
    assert resolve_model("third").dtype == "float16"


def test_mistakes_in_configs_are_told_in_the_file_that_makes_them(folder: Path) -> None:
    Path("configs/models").mkdir(parents=True)
    Path("configs/models/a.yaml").write_text("model: a\nsource: x/y\ndtype: int8\n")
    Path("configs/models/b.yaml").write_text("extends: a\ndevice: 3\n")
    with pytest.raises(WorkflowProblemsError) as caught:
        resolve_model("b")
    found = [str(problem).splitlines()[0] for problem in caught.value.problems]
    assert found == [
        "configs/models/a.yaml:3:8 – dtype: setting 'dtype' must be 'auto', 'float32', 'bfloat16' or 'float16', "
        "not 'int8'.",
        "configs/models/b.yaml:1:1 – model: setting 'model' is missing.",
        "configs/models/b.yaml:2:9 – device: setting 'device' must be a text, not 3.",
    ]
