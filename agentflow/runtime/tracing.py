"""A run as OpenTelemetry spans (extra `otel`): the workflow, its items, their nodes, and the calls of models.

Names and attributes are those of the semantic conventions for generative AI, and `agentflow.*` where these have none.
Sizes, counts and seconds are told; prompts, answers, payloads and the words of errors never are.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from agentflow.errors import UserError
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Event
from agentflow.runtime.scheduler import Unit
from agentflow.workflow.parts import ToolNode

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.trace import Span, TracerProvider

NAME = "agentflow"
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_FIX = "pip install 'agentflow-kv[otel]'"


class Tracing:
    """A listener that tells one run's events as spans.

    Args:
        binding: the workflow that runs.
        provider: where spans go; by default where the program has said.

    Raises:
        UserError: OpenTelemetry is not installed.
    """

    def __init__(self, binding: Binding, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            raise UserError("OpenTelemetry is not installed.", fix=_FIX) from None
        self._trace, self._binding = trace, binding
        self._tracer = trace.get_tracer(NAME, tracer_provider=provider)
        self._began = 0
        self._run: Span | None = None
        self._items: dict[str, Span] = {}
        self._units: dict[Unit, tuple[Span, int]] = {}

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if event.kind == "run_started":
            self._began = time.time_ns() - _nanoseconds(event.at)
            name = self._binding.workflow.name
            about = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": name}
            self._run = self._start(f"invoke_workflow {name}", self._at(event), None, about)
        handle = getattr(self, f"_{event.kind}", None)
        if handle is not None and self._run is not None:
            handle(event, self._at(event))

    # -- events -----------------------------------------------------------------------------------------

    def _node_started(self, event: Event, at: int) -> None:
        node = self._binding.workflow.nodes[event.node]
        about: dict[str, Any] = {"agentflow.node": event.node}
        if event.child is not None:
            about["agentflow.child"] = event.child
        if isinstance(node, ToolNode):
            name = f"execute_tool {node.tool}"
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": node.tool}
        else:
            name = f"invoke_agent {node.agent}"
            about |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": node.agent, **self._model(event)}
        self._units[_unit(event)] = self._start(name, at, self._item(event, at), about), at

    def _message(self, event: Event, at: int) -> None:
        self._note(event, at, "agentflow.message", ("sender", "channel", "bytes"))

    def _warning(self, event: Event, at: int) -> None:
        self._note(event, at, "agentflow.warning", ("sender",))

    def _node_finished(self, event: Event, at: int) -> None:
        found = self._units.pop(_unit(event), None)
        if found is None:
            return
        span, start = found
        if not isinstance(self._binding.workflow.nodes[event.node], ToolNode):
            start = self._handovers(event, span, start, at)
            self._called(event, span, start, at)
        span.end(at)

    def _node_retried(self, event: Event, at: int) -> None:
        self._failed(event, at, {"agentflow.next_attempt": event.data["attempt"]})

    def _node_failed(self, event: Event, at: int) -> None:
        self._failed(event, at, {})

    def _node_reused(self, event: Event, at: int) -> None:
        self._item(event, at).add_event("agentflow.reused", {"agentflow.node": event.node}, at)

    def _node_skipped(self, event: Event, at: int) -> None:
        self._units.pop(_unit(event), (self._item(event, at), at))[0].add_event(
            "agentflow.skipped", {"agentflow.node": event.node}, at
        )

    def _item_finished(self, event: Event, at: int) -> None:
        span = self._item(event, at)
        if event.data["failed"]:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(at)
        del self._items[event.item]

    def _run_finished(self, event: Event, at: int) -> None:
        for span in [*(span for span, _ in self._units.values()), *self._items.values()]:
            span.set_attribute("agentflow.unfinished", True)
            span.end(at)
        self._units.clear()
        self._items.clear()
        assert self._run is not None
        if event.data["failed"] or event.data["cancelled"]:
            self._run.set_status(self._trace.StatusCode.ERROR)
        self._run.end(at)
        self._run = None

    # -- inside -----------------------------------------------------------------------------------------

    def _handovers(self, event: Event, parent: Span, start: int, latest: int) -> int:
        """Spans of what was received, one after the other; when the last ended."""
        for message in event.data["messages"]:
            end = min(latest, start + _nanoseconds(message["encode_seconds"] + message["inject_seconds"]))
            names = ("sender", "channel", "bytes", "tokens", "kept", "prefilled", "generated")
            about = {f"agentflow.message.{name}": message[name] for name in names}
            self._start(f"receive {message['channel']}", start, parent, about).end(end)
            start = end
        return start

    def _called(self, event: Event, parent: Span, start: int, end: int) -> None:
        told = event.data
        about = {
            "gen_ai.operation.name": "chat",
            **self._model(event),
            "gen_ai.usage.input_tokens": told["prefilled"] + told["reused"],
            "gen_ai.usage.cache_read.input_tokens": told["reused"],
            "gen_ai.usage.output_tokens": told["generated"],
            "gen_ai.response.finish_reasons": [told["finish"]],
            "gen_ai.response.time_to_first_chunk": told["first_token_seconds"],
        }
        self._start(f"chat {about['gen_ai.request.model']}", start, parent, about).end(end)

    def _failed(self, event: Event, at: int, about: dict[str, Any]) -> None:
        found = self._units.pop(_unit(event), None)
        span = found[0] if found else self._start(f"node {event.node}", at, self._item(event, at), {})
        span.set_attributes({"error.type": event.data.get("kind") or "_OTHER", "agentflow.node": event.node, **about})
        span.set_status(self._trace.StatusCode.ERROR)
        span.end(at)

    def _note(self, event: Event, at: int, name: str, parts: tuple[str, ...]) -> None:
        found = self._units.get(_unit(event))
        if found is not None:
            found[0].add_event(name, {f"{name}.{part}": event.data[part] for part in parts}, at)

    def _item(self, event: Event, at: int) -> Span:
        if event.item not in self._items:
            self._items[event.item] = self._start("item", at, self._run, {"agentflow.item": event.item})
        return self._items[event.item]

    def _model(self, event: Event) -> dict[str, str]:
        return {"gen_ai.request.model": self._binding.model_of(event.node).model, "gen_ai.provider.name": NAME}

    def _start(self, name: str, at: int, parent: Span | None, about: dict[str, Any]) -> Span:
        context = self._trace.set_span_in_context(parent) if parent is not None else None
        return self._tracer.start_span(name, context, start_time=at, attributes=about)

    def _at(self, event: Event) -> int:
        return self._began + _nanoseconds(event.at)


def provider_from_environment() -> SdkProvider:
    """Spans go where the variables of OpenTelemetry say.

    OTEL_TRACES_EXPORTER is `otlp` (the default) or `console` (standard error); OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS
    and _PROTOCOL, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are heard as everywhere.

    Raises:
        UserError: what that needs is not installed.
    """
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as SdkProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError:
        raise UserError("OpenTelemetry is not installed.", where="--otel", fix=_FIX) from None
    service = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": NAME}
    provider = SdkProvider(resource=Resource.create(service))
    wanted = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if wanted == "console":
        exporter: Any = ConsoleSpanExporter(out=sys.stderr)
    else:
        name = wanted
        if wanted == "otlp":
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
            name = _PROTOCOLS.get(protocol, protocol)
        found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
        if not found:
            fix = f"{_FIX}, or set OTEL_TRACES_EXPORTER to `otlp` or `console`."
            raise UserError(f"There is no exporter '{name}' of spans.", where="--otel", fix=fix)
        exporter = found[0].load()()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _unit(event: Event) -> Unit:
    return Unit(event.item, event.node, event.child)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
