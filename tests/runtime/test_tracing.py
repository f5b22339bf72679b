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
from agentflow.runtime.manifest import manifest
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.otlp import otlp_json
from agentflow.runtime.runs import RunStore, read_events, read_manifest
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
  gives_up: {tool: breaks, on_error: skip}
edges: [{from: read, to: say, channel: cache}, {from: read, to: look}]
"""
SECRET = "xyzzy"


@pytest.fixture
def folder(tmp_path):
    """Where the run is stored."""
    return tmp_path


@pytest.fixture
def spans(folder):
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
    store = RunStore.create(folder, "watched", manifest(binding, RunOptions(), channel=None))
    runner = Orchestrator(
        binding,
        EnginePool(factory=lambda spec: tiny_engine()),
        store=store,
        listeners=[Tracing(binding, provider)],
    )
    runner.run([("x", {"secret": SECRET})])
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
    assert failed.attributes["error.type"] == "tool"
    assert named(spans, "execute_tool breaks")[0].attributes["error.type"] == "tool"
    assert [event.name for event in named(spans, "item")[0].events] == ["agentflow.skipped"]
    given_up = named(spans, "execute_tool breaks")[1]
    assert [event.name for event in given_up.events] == ["agentflow.skipped"]
    assert named(spans, "invoke_workflow watched")[0].status.status_code is StatusCode.ERROR


def test_nothing_that_was_said_is_in_a_span(spans):
    assert SECRET not in json.dumps([span.to_json() for span in spans])


def stored(folder):
    """The spans that the stored run is exported as."""
    (run,) = folder.iterdir()
    document = json.loads(json.dumps(otlp_json(run.name, read_manifest(run), read_events(run))))
    ((resource,),) = document.values()
    ((scope,),) = (resource["scopeSpans"],)
    return document, scope["spans"]


def plain(value):
    """An attribute's value out of OTLP/JSON."""
    ((kind, found),) = value.items()
    if kind == "arrayValue":
        return tuple(plain(inner) for inner in found["values"])
    return int(found) if kind == "intValue" else found


def pairs(attributes):
    return {pair["key"]: plain(pair["value"]) for pair in attributes}


def test_a_stored_run_is_exported_as_the_spans_that_were_sent_while_it_ran(spans, folder):
    live_names = {span.context.span_id: (span.name, span.start_time) for span in spans}
    live = [
        (
            span.name,
            span.start_time,
            span.end_time,
            live_names[span.parent.span_id] if span.parent else None,
            dict(span.attributes),
            [(event.name, event.timestamp, dict(event.attributes)) for event in span.events],
            span.status.status_code is StatusCode.ERROR,
        )
        for span in spans
    ]
    _, found = stored(folder)
    names = {span["spanId"]: (span["name"], int(span["startTimeUnixNano"])) for span in found}
    exported = [
        (
            span["name"],
            int(span["startTimeUnixNano"]),
            int(span["endTimeUnixNano"]),
            names[span["parentSpanId"]] if "parentSpanId" in span else None,
            pairs(span["attributes"]),
            [(e["name"], int(e["timeUnixNano"]), pairs(e["attributes"])) for e in span["events"]],
            span["status"] == {"code": 2},
        )
        for span in found
    ]
    assert len(exported) == len(names) == len(live)
    key = lambda span: (span[1], span[2], span[0], str(span[4]))  # noqa: E731
    assert sorted(exported, key=key) == sorted(live, key=key)
    assert {span["traceId"] for span in found} == {found[0]["traceId"]}
    assert SECRET not in json.dumps(found)
    assert stored(folder)[1] == found  # the same ids each time


def test_an_export_is_what_the_protocol_reads(spans, folder):
    import base64

    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    document, found = stored(folder)
    for span in found:  # OTLP writes ids in hexadecimal where protobuf's own JSON has base64
        for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    read = json_format.ParseDict(document, ExportTraceServiceRequest())
    (resource,) = read.resource_spans
    assert [span.name for span in resource.scope_spans[0].spans] == [span["name"] for span in found]
    assert {len(span.trace_id) for span in resource.scope_spans[0].spans} == {16}
    assert {len(span.span_id) for span in resource.scope_spans[0].spans} == {8}


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
