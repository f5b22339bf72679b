"""Spans of OpenTelemetry: the tree, the names of the conventions, sizes, and nothing of what was said."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed (extra `otel`)")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from agentflow.errors import UserError
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.tracing import Tracing, provider_from_environment
from agentflow.tools import Toolbox
from agentflow.workflow.loader import parse_workflow
from tests.tiny import tiny_engine

TEXT = """
workflow: watched
agents: {a: {model: {source: tests/tiny, model: tiny}}}
inputs: {secret: string}
nodes:
  read: {agent: a, prompt: "{{ inputs.secret }}", max_new_tokens: 3}
  look: {tool: look, retry: 1, with: {what: "{{ inputs.secret }}"}}
  say: {agent: a, prompt: say, max_new_tokens: 3}
  never: {agent: a, prompt: never, when: "1 > 2"}
  breaks: {tool: breaks}
edges: [{from: read, to: say, channel: cache}, {from: read, to: look}]
"""
SECRET = "xyzzy"


@pytest.fixture
def spans():
    """The spans of one run in which a call is tried again and another fails, by name."""
    failing = [True]

    def look(what: str) -> str:
        if failing.pop() if failing else False:
            raise LookupError(what)
        return what

    def breaks() -> str:
        raise LookupError(SECRET)

    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    binding = bind(parse_workflow(TEXT), Toolbox([look, breaks]))
    tracing = Tracing(binding, provider)
    Orchestrator(binding, EnginePool(factory=lambda spec: tiny_engine()), listeners=[tracing]).run(
        [("x", {"secret": SECRET})]
    )
    return memory.get_finished_spans()


def named(spans, name):
    return [span for span in spans if span.name == name]


def test_spans_are_a_tree_of_workflow_item_node_and_call(spans):
    (run,), (item,) = named(spans, "invoke_workflow watched"), named(spans, "item")
    turns, calls = named(spans, "invoke_agent a"), named(spans, "chat tiny")
    assert run.parent is None
    assert item.parent.span_id == run.context.span_id
    assert [turn.parent.span_id for turn in turns] == [item.context.span_id] * 2
    assert [call.parent.span_id for call in calls] == [turn.context.span_id for turn in turns]
    assert len({span.context.trace_id for span in spans}) == 1
    (received,) = named(spans, "receive cache")
    assert received.parent.span_id == turns[1].context.span_id
    for span in spans:
        assert run.start_time <= span.start_time <= span.end_time <= run.end_time


def test_attributes_are_those_of_the_conventions(spans):
    call = named(spans, "chat tiny")[1].attributes
    assert (call["gen_ai.operation.name"], call["gen_ai.request.model"]) == ("chat", "tiny")
    assert call["gen_ai.usage.output_tokens"] == 3
    assert call["gen_ai.usage.input_tokens"] > 0
    received = named(spans, "receive cache")[0].attributes
    assert received["agentflow.message.bytes"] > 0
    assert received["agentflow.message.sender"] == "read"
    assert named(spans, "execute_tool look")[0].attributes["gen_ai.tool.name"] == "look"
    (event,) = named(spans, "invoke_agent a")[1].events
    assert event.attributes["agentflow.message.channel"] == "cache"


def test_errors_and_what_was_left_out_are_told(spans):
    failed, again = named(spans, "execute_tool look")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["agentflow.next_attempt"] == 2
    assert again.status.status_code is StatusCode.UNSET
    assert named(spans, "execute_tool breaks")[0].attributes["error.type"]
    assert [event.name for event in named(spans, "item")[0].events] == ["agentflow.skipped"]
    assert named(spans, "invoke_workflow watched")[0].status.status_code is StatusCode.ERROR


def test_nothing_that_was_said_is_in_a_span(spans):
    assert SECRET not in json.dumps([span.to_json() for span in spans])


def test_the_environment_says_where_spans_go(monkeypatch, capsys):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    provider = provider_from_environment()
    provider.get_tracer("x").start_span("hello").end()
    provider.shutdown()
    said = capsys.readouterr().err
    assert '"name": "hello"' in said
    assert '"service.name": "mine"' in said
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "smoke")
    with pytest.raises(UserError, match="no exporter 'smoke'"):
        provider_from_environment()
