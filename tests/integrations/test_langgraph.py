"""AgentFlow in a real LangGraph: workflows as nodes, engines as chat models, as LangGraph's users expect of both."""

from __future__ import annotations

import asyncio
import operator
import re
import threading
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph", reason="the extra `langgraph` is not installed: pip install '.[langgraph]'")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from agentflow.errors import RunError, UserError
from agentflow.integrations.langgraph import EngineChat, WorkflowNode, turns_of
from agentflow.models.chat import render
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Request
from agentflow.runtime.flow import Flow
from agentflow.workflow.loader import parse_workflow
from tests.cli.conftest import save_tiny
from tests.tiny import make_engine, tiny_engine, tiny_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "langgraph.md"
TEXT = """
workflow: facts
inputs: {facts: list, question: string, tone: {type: string, default: brief}}
agents: {a: {model: {source: tests/tiny, model: tiny}, system: remember}}
nodes:
  read: {agent: a, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  answer: {agent: a, prompt: "{{ inputs.question }}", max_new_tokens: 5}
edges: [{from: read, to: answer, channel: cache}]
outputs: {answer: "{{ nodes.answer.text }}", asked: "{{ inputs.question }}"}
"""
STATE = {"facts": ["the code is seven"], "question": "what is the code ?"}


class State(TypedDict, total=False):
    facts: list[str]
    question: str
    answer: str
    asked: str
    log: Annotated[list[str], operator.add]


@pytest.fixture
def flow():
    return Flow(parse_workflow(TEXT), EnginePool(factory=lambda spec: tiny_engine()))


@pytest.fixture
def chat():
    """A chat model on an engine of its own, which has computed nothing yet."""
    engine = make_engine(tiny_model(), "tiny")
    return EngineChat(
        model={"source": "tests/tiny", "model": "tiny"},
        max_tokens=6,
        engines=EnginePool(factory=lambda spec: engine),
    )


def graph_of(node: Any, state: type = State):
    return StateGraph(state).add_node("work", node).add_edge(START, "work").add_edge("work", END).compile()


def test_a_workflow_is_a_node_that_takes_its_inputs_from_the_state_and_adds_its_outputs(flow):
    wanted = flow.run(STATE).outputs
    found = graph_of(WorkflowNode(flow)).invoke({**STATE, "log": ["begun"]})
    assert found == {**STATE, **wanted, "log": ["begun"]}


def test_names_of_the_state_need_not_be_those_of_the_workflow(flow):
    node = WorkflowNode(flow, inputs={"question": "ask", "facts": "known"}, outputs={"answer": "said"})
    assert node.invoke({"ask": STATE["question"], "known": STATE["facts"]}) == {
        "said": flow.run(STATE).outputs["answer"]
    }
    for wrong in ({"inputs": {"fact": "known"}}, {"outputs": {"answers": "said"}}):
        with pytest.raises(UserError, match=r"no (in|out)put.*Did you mean"):
            WorkflowNode(flow, **wrong)


def test_a_graph_streams_and_awaits_a_workflow(flow):
    graph, wanted = graph_of(WorkflowNode(flow)), flow.run(STATE).outputs
    assert list(graph.stream(STATE, stream_mode="updates")) == [{"work": wanted}]
    assert asyncio.run(graph.ainvoke(STATE))["answer"] == wanted["answer"]


def test_many_states_are_one_run_and_one_that_is_wrong_spoils_no_other(flow, monkeypatch):
    sizes = []
    engine = tiny_engine()
    real = engine.generate
    monkeypatch.setattr(engine, "generate", lambda requests: sizes.append(len(requests)) or real(requests))
    states = [{**STATE, "question": f"what {n} ?"} for n in range(3)]
    node = WorkflowNode(flow)
    assert [found["asked"] for found in node.batch(states)] == ["what 0 ?", "what 1 ?", "what 2 ?"]
    assert max(sizes) == 3
    found = node.batch([states[0], {"facts": "none"}, states[2]], return_exceptions=True)
    assert isinstance(found[1], UserError)
    assert [found[n]["asked"] for n in (0, 2)] == ["what 0 ?", "what 2 ?"]
    with pytest.raises(UserError):
        node.batch([states[0], {"facts": "none"}])
    assert node.batch([]) == []


def test_inputs_that_are_missing_or_wrong_are_told_as_by_the_workflow(flow):
    with pytest.raises(UserError, match="question"):
        graph_of(WorkflowNode(flow)).invoke({"facts": ["a"]})


def test_a_node_that_fails_fails_the_graphs_node(flow):
    long = {**STATE, "facts": ["the code is seven"] * 200}
    with pytest.raises(RunError, match=r"'facts' has failed: read: .* more than the 512 positions"):
        WorkflowNode(flow).invoke(long)


def test_a_channel_can_be_chosen_and_is_checked_at_once(flow):
    assert WorkflowNode(flow, channel="text").invoke(STATE) == WorkflowNode(flow).invoke(STATE)
    with pytest.raises(UserError, match="c2c"):
        WorkflowNode(flow, channel="c2c")


def test_a_chat_model_says_what_its_engine_says(chat):
    messages = [SystemMessage("be brief"), HumanMessage("what is the code ?")]
    said = chat.invoke(messages)
    ids = tuple(render(chat.engine.tokenizer, turns_of(messages), reply=True))
    (answer,) = chat.engine.generate([Request(ids, max_new_tokens=6)])
    assert isinstance(said, AIMessage)
    assert said.content == answer.text
    assert said.usage_metadata["input_tokens"] == len(ids)
    assert said.usage_metadata["output_tokens"] == len(answer.token_ids)
    assert said.response_metadata["model_name"] == "tiny"
    assert said.response_metadata["finish_reason"] == ("length" if answer.finish == "length" else "stop")


def test_a_conversation_that_goes_on_computes_its_new_end_alone(chat):
    messages = [HumanMessage("what is the code of room seven ?")]
    first = chat.invoke(messages)
    second = chat.invoke([*messages, first, HumanMessage("and of room nine ?")])
    usage = second.usage_metadata
    assert first.usage_metadata["input_token_details"]["cache_read"] == 0
    assert usage["input_token_details"]["cache_read"] >= first.usage_metadata["input_tokens"] - 1
    fresh = make_engine(tiny_model(), "tiny")
    alone = chat.model_copy(update={"engines": EnginePool(factory=lambda spec: fresh)})
    assert alone.invoke([*messages, first, HumanMessage("and of room nine ?")]).content == second.content


def test_a_stream_is_the_answer_in_pieces_with_the_usage_at_its_end(chat):
    chat = chat.bind(max_tokens=40)
    whole = chat.invoke("who is in paris ?")
    chunks = list(chat.stream("who is in paris ?"))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert len([chunk for chunk in chunks if chunk.content]) > 1
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_whoever_stops_listening_stops_the_engine(chat, monkeypatch):
    answers, ended = [], threading.Event()
    real = chat.engine.generate

    def generate(requests):
        answers.extend(real(requests))
        ended.set()
        return answers

    monkeypatch.setattr(chat.engine, "generate", generate)
    stream = chat.bind(max_tokens=400).stream("who is in paris ?")
    next(stream)
    stream.close()
    assert ended.wait(60)
    assert answers[0].finish == "cancelled"
    assert answers[0].generated < 400


def test_what_fails_while_it_streams_is_raised_to_the_listener(chat):
    with pytest.raises(UserError, match="more than the 512 positions"):
        list(chat.stream("who is in paris ? " * 100))


def test_the_example_in_the_documents_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    save_tiny(tmp_path / "models" / "smollm2-135m")
    (example,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(example, "example", "exec"), {})
    assert capsys.readouterr().out.startswith("[")


def test_settings_of_a_call_win_and_unknown_ones_are_refused(chat):
    warm = chat.bind(temperature=1.5)
    said = {warm.invoke("who ?", seed=n).content for n in range(6)}
    assert len(said) > 1
    assert warm.invoke("who ?", seed=3).content == warm.invoke("who ?", seed=3).content
    assert chat.invoke("who ?", max_tokens=2).usage_metadata["output_tokens"] <= 2
    whole = chat.invoke("who ?").content
    stop = whole[2]
    assert chat.invoke("who ?", stop=[stop]).content == whole.split(stop)[0]
    with pytest.raises(UserError, match=r"no setting 'temprature'\. Did you mean 'temperature'"):
        chat.invoke("who ?", temprature=1)


def test_messages_that_an_engine_can_not_read_are_refused(chat):
    assert turns_of([HumanMessage([{"type": "text", "text": "a"}, "b"])])[0].content == "ab"
    with pytest.raises(UserError, match="no 'image_url'"):
        chat.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:x"}}])])
    with pytest.raises(UserError, match="kind 'tool'"):
        chat.invoke([HumanMessage("x"), ToolMessage("7", tool_call_id="1")])


def test_a_chat_model_is_a_node_of_a_graph_with_messages(chat):
    def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"])]}

    graph = graph_of(talk, MessagesState)
    found = graph.invoke({"messages": [HumanMessage("who is in paris ?")]})
    assert [message.type for message in found["messages"]] == ["human", "ai"]
    pieces = [chunk for chunk, _ in graph.stream({"messages": [HumanMessage("who ?")]}, stream_mode="messages")]
    assert len(pieces) > 1
