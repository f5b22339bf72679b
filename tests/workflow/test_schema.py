from __future__ import annotations

import copy
import pickle

import pytest
from pydantic import ValidationError

from agentflow.workflow import ChannelSpec, Generation, Workflow, parse_workflow, raise_problems
from agentflow.workflow.problems import WorkflowProblemsError

from .samples import GOOD, changed


@pytest.fixture
def workflow() -> Workflow:
    return parse_workflow(GOOD, "flow.yaml")


def test_short_forms_mean_the_same_as_long_ones(workflow: Workflow) -> None:
    assert workflow.inputs["question"].type == "string"
    assert workflow.inputs["question"].required
    assert not workflow.inputs["documents"].required
    assert workflow.edges[1].channel == ChannelSpec.of({"name": "cache"}) == ChannelSpec.of("cache")
    assert parse_workflow(changed("task: {name: hotpotqa, answer: answer}", "task: {name: q, answer: each, n: 3}")).task
    assert workflow.task is not None
    assert (workflow.task.name, workflow.task.answer, workflow.task.settings) == ("hotpotqa", "answer", {})


def test_channels_keep_their_settings(workflow: Workflow) -> None:
    assert (workflow.edges[0].channel.name, workflow.edges[0].channel.settings) == (
        "latent_briefing",
        {"t": 1.0},
    )


def test_defaults_reach_agents_and_edges(workflow: Workflow) -> None:
    assert workflow.agents["reader"].model == "tiny"
    assert workflow.agents["answerer"].model == "small"
    assert workflow.edges[1].channel.name == "cache"
    without = parse_workflow(changed("  channel: cache\n", ""))
    assert without.edges[1].channel.name == "text"


def test_a_model_may_be_a_mapping() -> None:
    workflow = parse_workflow(changed("model: small", "model: {id: org/name, dtype: bfloat16}"))
    assert workflow.agents["answerer"].model == {"id": "org/name", "dtype": "bfloat16"}
    assert str(workflow.location(("agents", "answerer", "model", "dtype"))).endswith(":11:43")


def test_a_node_wins_over_its_agent_and_an_agent_over_the_defaults() -> None:
    text = changed("  model: tiny", "  model: tiny\n  temperature: 0.1\n  top_k: 5\n  max_new_tokens: 7")
    workflow = parse_workflow(text)
    assert workflow.effective("read").settings == {"max_new_tokens": 0, "temperature": 0.1, "top_k": 5}
    assert workflow.effective("answer").settings == {
        "max_new_tokens": 7,
        "temperature": 0.5,
        "top_k": 5,
        "stop": (".", "!"),
    }
    assert isinstance(workflow.effective("read"), Generation)


def test_a_single_stop_text_is_a_list_of_one() -> None:
    workflow = parse_workflow(changed('stop: [".", "!"]', 'stop: "."'))
    assert workflow.nodes["answer"].stop == (".",)


def test_null_means_not_said() -> None:
    workflow = parse_workflow(changed("max_new_tokens: 0", "max_new_tokens: null"))
    assert workflow.nodes["read"].max_new_tokens is None
    assert parse_workflow(changed('outputs:\n  answer: "{{ nodes.answer.text }}"\n', "outputs:\n")).outputs == {}


def test_with_channel_replaces_every_channel_and_leaves_the_original(workflow: Workflow) -> None:
    other = workflow.with_channel({"name": "c2c", "bundle": "x"})
    assert {edge.channel.name for edge in other.edges} == {"c2c"}
    assert other.edges[0].channel.settings == {"bundle": "x"}
    assert workflow.edges[0].channel.name == "latent_briefing"
    assert other.location(("edges", 1, "to")) == workflow.location(("edges", 1, "to"))
    assert {edge.channel.name for edge in workflow.with_channel("text").edges} == {"text"}


def test_with_channel_leaves_fixed_edges_alone() -> None:
    workflow = parse_workflow(changed("- {from: read, to: each}", "- {from: read, to: each, fixed: true}"))
    assert [edge.channel.name for edge in workflow.with_channel("text").edges] == ["text", "cache"]


def test_models_do_not_change(workflow: Workflow) -> None:
    with pytest.raises(ValidationError):
        workflow.name = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        workflow.nodes["read"].prompt = "x"  # type: ignore[misc]


def test_upper_rooms_can_report_at_the_place_of_any_value(workflow: Workflow) -> None:
    path = ("edges", 0, "channel", "name")
    with pytest.raises(WorkflowProblemsError) as caught:
        raise_problems([workflow.problem(path, "unknown channel 'x'", "Did you mean 'y'?")])
    assert str(caught.value).startswith("flow.yaml:30:46 – edges[0].channel.name: unknown channel 'x'. Did")
    assert str(workflow.location(("edges", 0, "channel", "t"), key=True)) == "flow.yaml:30:63"


def test_what_came_from_defaults_is_located_in_the_defaults(workflow: Workflow) -> None:
    assert str(workflow.location(("agents", "reader", "model"))) == "flow.yaml:7:10"
    assert str(workflow.location(("edges", 1, "channel", "name"))) == "flow.yaml:8:12"
    assert workflow.problem(("edges", 1, "channel"), "x").path == ("defaults", "channel")


def test_a_workflow_survives_copying_and_pickling(workflow: Workflow) -> None:
    for twin in (pickle.loads(pickle.dumps(workflow)), copy.deepcopy(workflow), workflow.model_copy()):
        assert twin == workflow
        assert twin.location(("nodes", "read", "agent")) == workflow.location(("nodes", "read", "agent"))


def test_a_workflow_can_be_made_without_a_file() -> None:
    data = {"workflow": "a", "agents": {"x": {"model": "m"}}, "nodes": {"n": {"agent": "x", "prompt": "hi"}}}
    workflow = Workflow.model_validate(data)
    assert workflow.file == "<workflow>"
    assert workflow.sources == ()
    assert str(workflow.problem(("nodes", "n"), "odd")) == "<workflow>:1:1 – nodes.n: odd."


def test_a_dumped_workflow_reads_back_as_itself(workflow: Workflow) -> None:
    assert Workflow.model_validate(workflow.model_dump(by_alias=True, exclude_unset=True)).model_dump() == (
        workflow.model_dump()
    )
