"""A run's events as spans: the workflow, its items, their nodes, and the calls of models; whoever records them.

Names and attributes are those of OpenTelemetry's semantic conventions for generative AI, and `agentflow.*` where these
have none. Sizes, counts and seconds are told; prompts, answers, payloads and the words of errors never are.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from agentflow.runtime.events import Event
from agentflow.runtime.scheduler import Unit
from agentflow.workflow.frames import address

NAME = "agentflow"


class Recorded(Protocol):
    """What is done with a span; OpenTelemetry's own spans are such. Times are nanoseconds since 1970."""

    def set_attributes(self, attributes: Mapping[str, Any], /) -> None:
        """Say more about it."""

    def add_event(self, name: str, attributes: Mapping[str, Any] | None, timestamp: int | None, /) -> None:
        """Say that something happened in it."""

    def set_status(self, status: Any, /) -> None:
        """Say that it has failed."""

    def end(self, end_time: int | None, /) -> None:
        """Say that it is over."""


S = TypeVar("S", bound=Recorded)
Begin = Callable[[str, int, S | None, dict[str, Any]], S]
"""Begins a span: its name, when, within which, and what is known about it."""


@dataclass(frozen=True)
class Names:
    """What a run's manifest says of its nodes, by node as people see it: their agents, tools and models."""

    workflow: str
    agents: Mapping[str, str]
    tools: Mapping[str, str]
    models: Mapping[str, str]

    @classmethod
    def of(cls, workflow: str, manifest: Mapping[str, Any]) -> Names:
        """Read them out of a manifest."""
        return cls(workflow, manifest.get("agents", {}), manifest.get("tools", {}), manifest.get("models", {}))


class Telling(Generic[S]):
    """Takes in one process's events and tells them as spans.

    Args:
        begin: records a span.
        failed: the status of one that has failed.
    """

    def __init__(self, names: Names, begin: Begin[S], failed: Any) -> None:
        self._names, self._begin, self._failed_status = names, begin, failed
        self._began = self._latest = 0
        self._run: S | None = None
        self._items: dict[str, S] = {}
        self._units: dict[Unit, tuple[S, int]] = {}

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if event.kind == "run_started":
            self._began = event.data["time"] - _nanoseconds(event.at)
            about = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": self._names.workflow}
            self._run = self._begin(f"invoke_workflow {self._names.workflow}", self._at(event), None, about)
        self._latest = self._at(event)
        handle = getattr(self, f"_{event.kind}", None)
        if handle is not None and self._run is not None:
            handle(event, self._latest)

    def close(self, *, failed: bool = True) -> None:
        """End what is open, at the time of the latest event: the process has ended, or was killed."""
        if self._run is None:
            return
        for span in [*(span for span, _ in self._units.values()), *self._items.values()]:
            span.set_attributes({"agentflow.unfinished": True})
            span.end(self._latest)
        self._units.clear()
        self._items.clear()
        if failed:
            self._run.set_status(self._failed_status)
        self._run.end(self._latest)
        self._run = None

    # -- events -----------------------------------------------------------------------------------------

    def _node_started(self, event: Event, at: int) -> None:
        node = address(event.node)
        about: dict[str, Any] = {"agentflow.node": event.node}
        if event.child is not None:
            about["agentflow.child"] = event.child
        tool = self._names.tools.get(node)
        if tool is not None:
            name = f"execute_tool {tool}"
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        else:
            agent = self._names.agents.get(node, node)
            name = f"invoke_agent {agent}"
            about |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent, **self._model(event)}
        self._units[_unit(event)] = self._begin(name, at, self._item(event, at), about), at

    def _message(self, event: Event, at: int) -> None:
        self._note(event, at, "agentflow.message", ("sender", "channel", "bytes"))

    def _warning(self, event: Event, at: int) -> None:
        self._note(event, at, "agentflow.warning", ("sender",))

    def _memory(self, event: Event, at: int) -> None:
        self._note(event, at, "agentflow.memory", ("policy", "limit", "tokens", "held", "dropped", "kept"))

    def _node_finished(self, event: Event, at: int) -> None:
        found = self._units.pop(_unit(event), None)
        if found is None:
            return
        span, start = found
        if address(event.node) not in self._names.tools:
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
        found = self._units.get(_unit(event))
        span = found[0] if found else self._item(event, at)
        span.add_event("agentflow.skipped", {"agentflow.node": event.node}, at)
        if found is not None:  # it had begun, and failed
            del self._units[_unit(event)]
            span.end(at)

    def _item_finished(self, event: Event, at: int) -> None:
        span = self._item(event, at)
        if event.data["failed"]:
            span.set_status(self._failed_status)
        span.end(at)
        del self._items[event.item]

    def _run_finished(self, event: Event, at: int) -> None:
        del at
        self.close(failed=bool(event.data["failed"] or event.data["cancelled"]))

    # -- inside -----------------------------------------------------------------------------------------

    def _handovers(self, event: Event, parent: S, start: int, latest: int) -> int:
        """Spans of what was received, one after the other; when the last ended."""
        for message in event.data["messages"]:
            end = min(latest, start + _nanoseconds(message["encode_seconds"] + message["inject_seconds"]))
            names = ("sender", "channel", "bytes", "tokens", "kept", "prefilled", "generated")
            about = {f"agentflow.message.{name}": message[name] for name in names}
            self._begin(f"receive {message['channel']}", start, parent, about).end(end)
            start = end
        return start

    def _called(self, event: Event, parent: S, start: int, end: int) -> None:
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
        self._begin(f"chat {about['gen_ai.request.model']}", start, parent, about).end(end)

    def _failed(self, event: Event, at: int, about: dict[str, Any]) -> None:
        found = self._units.pop(_unit(event), None)
        span = found[0] if found else self._begin(f"node {event.node}", at, self._item(event, at), {})
        span.set_attributes({"error.type": event.data["type"], "agentflow.node": event.node, **about})
        span.set_status(self._failed_status)
        span.end(at)

    def _note(self, event: Event, at: int, name: str, parts: tuple[str, ...]) -> None:
        found = self._units.get(_unit(event))
        if found is not None:
            found[0].add_event(name, {f"{name}.{part}": event.data[part] for part in parts}, at)

    def _item(self, event: Event, at: int) -> S:
        if event.item not in self._items:
            self._items[event.item] = self._begin("item", at, self._run, {"agentflow.item": event.item})
        return self._items[event.item]

    def _model(self, event: Event) -> dict[str, str]:
        return {
            "gen_ai.request.model": self._names.models.get(address(event.node), "unknown"),
            "gen_ai.provider.name": NAME,
        }

    def _at(self, event: Event) -> int:
        return self._began + _nanoseconds(event.at)


def _unit(event: Event) -> Unit:
    return Unit(event.item, event.node, event.child)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
