"""A run as OpenTelemetry spans while it runs (extra `otel`); what is told of it is in `runtime.telling`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from agentflow.errors import UserError
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Event
from agentflow.runtime.manifest import doers
from agentflow.runtime.telling import NAME, Names, Telling

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.trace import Span, TracerProvider

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_FIX = "pip install 'agentflow-kv[otel]'"


class Tracing:
    """A listener that tells one run's events as spans while it runs.

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
        tracer = trace.get_tracer(NAME, tracer_provider=provider)

        def begin(name: str, at: int, parent: Span | None, about: dict[str, Any]) -> Span:
            context = trace.set_span_in_context(parent) if parent is not None else None
            return tracer.start_span(name, context, start_time=at, attributes=about)

        names = Names.of(binding.workflow.name, doers(binding))
        self._telling: Telling[Span] = Telling(names, begin, trace.StatusCode.ERROR)

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        self._telling(event)


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
