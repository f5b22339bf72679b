"""What the names in a template mean: which nodes it needs, and what it sees of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentflow.errors import UserError
from agentflow.workflow.frames import Body, Frame
from agentflow.workflow.groups import Loop, SubWorkflow
from agentflow.workflow.inputs import WORDS, fits
from agentflow.workflow.layout import Layout
from agentflow.workflow.location import KeyPath
from agentflow.workflow.problems import described
from agentflow.workflow.references import mentions, used
from agentflow.workflow.templates import render_value

NOTHING: Mapping[str, Any] = {"text": "", "texts": [], "value": "", "values": []}
"""What a node said that was left out, or that has not run because this is the first round."""

Taken = set[str] | None
"""The names that a template takes of a node; None means all."""


class Needs:
    """Which nodes of an expanded workflow must have ended before a template can be filled in.

    Attributes:
        circles: inputs of sub-workflows that depend on themselves.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], set[str] | None] = {}  # None: being worked out
        self.circles: list[tuple[Body, KeyPath]] = []

    def of(self, frame: Frame, at: str | None, template: str, *, is_expression: bool = False) -> set[str]:
        """Return the nodes that a template of the node `at` looks at (see `Frame.find`).

        A node's own that looks at all of `nodes` sees those that lead to it, and needs nothing more.

        Raises:
            TemplateError: it can't be read.
        """
        found: set[str] = set()
        uses = used(template, "nodes", is_expression=is_expression)
        if uses is None:
            uses = dict.fromkeys(frame.body.nodes) if at is None else {}
        for name, taken in uses.items():
            _, holder = frame.find(name, at)
            if holder is not None:
                found |= self.node(holder, name, taken)
        top = frame.top
        inputs = top.step.inputs if isinstance(top.step, SubWorkflow) and top.outer is not None else {}
        mentioned = used(template, "inputs", is_expression=is_expression) if inputs else {}
        for name in inputs if mentioned is None else mentioned:
            found |= self._input(top, name)
        return found

    def borrowed(self, frame: Frame) -> Iterator[tuple[tuple[str | int, ...], set[str]]]:
        """Give what a loop or sub-workflow needs before it can begin, with the key that says so."""
        step, outer = frame.step, frame.outer
        if step is None or outer is None:
            return
        if step.when is not None:
            yield ("when",), self.of(outer, frame.name, step.when, is_expression=True)
        if isinstance(step, SubWorkflow):
            for name, value in step.inputs.items():
                if isinstance(value, str):
                    yield ("inputs", name), self.of(outer, frame.name, value)
        elif step.loop.until is not None:
            needed = self.of(frame, None, step.loop.until, is_expression=True)
            yield ("loop", "until"), {node for node in needed if not node.startswith(f"{frame.group}[")}

    def node(self, frame: Frame, name: str, taken: Taken = None) -> set[str]:
        """Return the nodes that must have ended before `nodes.NAME` can be shown."""
        step = frame.body.nodes.get(name)
        if isinstance(step, Loop):
            last = frame.inner[name][-1]
            names = last.body.nodes if taken is None or "rounds" in taken else taken & last.body.nodes.keys()
            return {node for inner in names for node in self.node(last, inner)}
        if isinstance(step, SubWorkflow):
            inside = frame.inner[name][0]
            outputs = inside.body.file.outputs
            return {
                node for output in outputs if taken is None or output in taken for node in self._output(inside, output)
            }
        return {frame.prefix + name}

    def _output(self, frame: Frame, name: str) -> set[str]:
        template = frame.body.file.outputs[name]
        return self._once(frame, "output", name, lambda: self.of(frame, None, template))

    def _input(self, frame: Frame, name: str) -> set[str]:
        value = frame.step.inputs.get(name) if isinstance(frame.step, SubWorkflow) else None
        outer = frame.outer
        if outer is None or not isinstance(value, str):
            return set()
        return self._once(frame, "input", name, lambda: self.of(outer, frame.name, value))

    def _once(self, frame: Frame, kind: str, name: str, work_out: Callable[[], set[str]]) -> set[str]:
        key = (frame.prefix, kind, name)
        if key not in self._known:
            self._known[key] = None
            self._known[key] = work_out()
        found = self._known[key]
        if found is None and frame.outer is not None:
            self.circles.append((frame.outer.body, frame.outer.body.node_path(frame.name, "inputs")))
        return found or set()


def needed(layout: Layout, node: str, template: str, *, is_expression: bool = False) -> set[str] | None:
    """Return the nodes that a template of a node looks at; None where it looks at all of `nodes`."""
    if used(template, "nodes", is_expression=is_expression) is None:
        return None
    return Needs().of(layout.frames[node], layout.local(node), template, is_expression=is_expression)


class Said(Protocol):
    """What has happened so far in one item."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The values that the workflow was given."""

    @property
    def values(self) -> dict[tuple[str, str, str], Any]:
        """Where inputs and outputs of sub-workflows are kept once they are worked out."""

    def said(self, node: str) -> Mapping[str, Any] | None:
        """Return `text` and `texts` of a node; None where it has not run."""

    def rounds_of(self, loop: str) -> int | None:
        """Return after how many rounds a loop has ended early; None where it has not."""


@dataclass(frozen=True, eq=False)
class Meaning:
    """What the templates of one item see."""

    item: Said

    def context(
        self,
        frame: Frame,
        at: str | None,
        template: str,
        *,
        is_expression: bool = False,
        above: Callable[[], Container[str]] | None = None,
    ) -> dict[str, Any]:
        """Return the names that a template of the node `at` can use (see `Frame.find`).

        Args:
            above: gives the nodes that a template may see which looks at all of `nodes`; by default those of the
                frame.

        Raises:
            UserError: the input of a sub-workflow can't be worked out, or is of another type than it declares.
        """
        uses = used(template, "nodes", is_expression=is_expression)
        if uses is None:
            uses = dict.fromkeys(self._seen(frame, at, above()) if above else frame.body.nodes)
        nodes = {}
        for name, taken in uses.items():
            body, holder = frame.find(name, at)
            value = self._node(holder, name, taken) if holder else _nothing(body, name) if body else None
            if value is not None:
                nodes[name] = value
        context: dict[str, Any] = {"inputs": self._inputs(frame.top, template, is_expression), "nodes": nodes}
        if frame.number is not None and frame.outer is not None:
            context["round"] = frame.number
            if mentions(template, "rounds", is_expression=is_expression):
                done = frame.outer.inner[frame.name][: frame.number + (at is None)]
                context["rounds"] = [self._round(one, None) for one in done]
        return context

    def _seen(self, frame: Frame, at: str | None, above: Container[str]) -> Iterator[str]:
        needs = Needs()
        for name in frame.names:
            _, holder = frame.find(name, at)
            if holder is None or all(node in above for node in needs.node(holder, name)):
                yield name

    def _node(self, frame: Frame, name: str, taken: Taken) -> Mapping[str, Any] | None:
        """Return what templates see of a node, a loop (its last round) or a sub-workflow (its outputs)."""
        inner = frame.inner.get(name)
        if inner is None:
            return self.item.said(frame.prefix + name)
        if inner[0].number is None:
            outputs = inner[0].body.file.outputs
            return {output: self._output(inner[0], output) for output in outputs if taken is None or output in taken}
        done = self.item.rounds_of(frame.prefix + name)
        rounds = inner[:done]
        shown = dict(self._round(rounds[-1], taken))
        if taken is None or "rounds" in taken:
            shown["rounds"] = [self._round(one, None) for one in rounds]
        return shown

    def _round(self, frame: Frame, taken: Taken) -> Mapping[str, Any]:
        names = (name for name in frame.body.nodes if taken is None or name in taken)
        return {name: value for name in names if (value := self._node(frame, name, None)) is not None}

    def _inputs(self, top: Frame, template: str, is_expression: bool) -> Mapping[str, Any]:
        if top.outer is None:
            return self.item.inputs
        uses = used(template, "inputs", is_expression=is_expression)
        declared = top.body.file.inputs
        return {name: self._input(top, name) for name in (declared if uses is None else uses) if name in declared}

    def _input(self, frame: Frame, name: str) -> Any:
        """Work out what a sub-workflow is given for an input."""
        key = (frame.prefix, "input", name)
        step, outer, spec = frame.step, frame.outer, frame.body.file.inputs[name]
        if key in self.item.values or outer is None or not isinstance(step, SubWorkflow):
            return self.item.values.get(key)
        value = step.inputs.get(name, spec.default)
        if isinstance(value, str) and name in step.inputs:
            where = str(outer.body.origins.location(outer.body.node_path(frame.name, "inputs", name)))
            value = render_value(value, self.context(outer, frame.name, value), where=where)
            if not fits(spec.type, value):
                what = f"the input '{name}' of '{frame.name}' must be {WORDS[spec.type]}, got {described(value)}."
                raise UserError(what, where=where)
        self.item.values[key] = value
        return value

    def _output(self, frame: Frame, name: str) -> Any:
        """Work out an output of a sub-workflow."""
        key = (frame.prefix, "output", name)
        if key not in self.item.values:
            template = frame.body.file.outputs[name]
            where = str(frame.body.origins.location(("outputs", name)))
            self.item.values[key] = render_value(template, self.context(frame, None, template), where=where)
        return self.item.values[key]


def _nothing(body: Body, name: str) -> Mapping[str, Any]:
    """Return what a node of the round before is in the first round: empty."""
    inner = body.inner.get(name)
    if inner is None:
        return NOTHING
    if inner.loop is None:
        return dict.fromkeys(inner.file.outputs, "")
    return {**{each: _nothing(inner, each) for each in inner.nodes}, "rounds": []}
