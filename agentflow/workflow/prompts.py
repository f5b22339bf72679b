"""Checks of the templates in a workflow: syntax, and that what they refer to exists and has run before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentflow.workflow.expand import Expansion
from agentflow.workflow.frames import Body, Frame, address
from agentflow.workflow.graph import unreached
from agentflow.workflow.groups import Loop, SubWorkflow
from agentflow.workflow.location import KeyPath
from agentflow.workflow.meaning import NOTHING
from agentflow.workflow.origins import TextSpot
from agentflow.workflow.parts import AnyNode, Node, texts_in
from agentflow.workflow.problems import Problem, quoted
from agentflow.workflow.references import (
    Reference,
    References,
    TemplateError,
    expression_references,
    references,
    used,
)

if TYPE_CHECKING:
    import networkx as nx

Advise = Callable[[str, Iterable[str]], str]


@dataclass(frozen=True)
class Text:
    """A template of a file, and what it can see.

    Attributes:
        scope: whose nodes it names, with those of the loops around it.
        node: whose template it is; None where it is filled in after all nodes of its scope.
        local: names that it knows beside `inputs` and `nodes`.
    """

    scope: tuple[Body, ...]
    path: KeyPath
    template: str
    node: str | None = None
    local: frozenset[str] = frozenset()
    is_expression: bool = False


class PromptChecks:
    """Collects what is wrong with the prompts, expressions and outputs of one file.

    Attributes:
        unreadable: whether there is a template whose references are not known.
    """

    def __init__(self, body: Body, advise: Advise) -> None:
        self._body, self._origins, self._advise = body, body.origins, advise
        self.unreadable = False

    def problems(self) -> list[Problem]:
        """Return everything that is wrong in itself."""
        return [problem for text in texts(self._body) for problem in self._text(text)]

    def order(self, expansion: Expansion, graph: nx.DiGraph[str]) -> Iterator[Problem]:
        """Give templates that look at what may not have run yet."""
        waits: dict[tuple[str, str], tuple[Text, Frame]] = {}
        by_node: dict[tuple[int, str], list[Text]] = {}
        for text in texts(self._body):
            if text.node is not None and not isinstance(text.scope[-1].nodes[text.node], Loop | SubWorkflow):
                by_node.setdefault((id(text.scope[-1]), text.node), []).append(text)
        for node, frame in expansion.layout.frames.items():
            local = expansion.layout.local(node)
            for text in by_node.get((id(frame.body), local), ()):
                for first in self._needed(expansion, frame, text):
                    waits.setdefault((first, node), (text, frame))
        for first, node in sorted(unreached(graph, waits)):
            text, frame = waits[first, node]
            ends = _shown(first, node)
            if first == node:
                what, fix = f"the node {quoted(node)} can't use its own result", "Name another node."
            else:
                what = f"no edge leads from {quoted(ends[0])} to {quoted(ends[1])}, so it may not have run yet"
                fix = f"Add an edge from {ends[0]}: `- {{from: {ends[0]}, to: {ends[1]}}}`."
            yield self._origins.text_problem(text.path, what, fix, self._spot_of(expansion, frame, text, first))

    def _text(self, text: Text) -> Iterator[Problem]:
        in_tags = not text.is_expression or "{{" in text.template
        try:
            found: References = (expression_references if text.is_expression else references)(text.template)
        except TemplateError as error:
            self.unreadable = True
            spot = TextSpot(error.line or 1, error.near, in_tags=in_tags)
            yield self._origins.text_problem(text.path, error.what, error.fix or "", spot)
            return
        known = {"inputs", "nodes", *text.local}
        for ref in found.names:
            if ref.root not in known:
                what = f"unknown name {quoted(ref.root)} in the template"
                yield self._origins.text_problem(
                    text.path, what, self._meant(ref.root, known, text), _spot(ref, in_tags)
                )
        for ref in found.members:
            yield from self._member(text, ref, _spot(ref, in_tags))
        is_group = text.node is not None and isinstance(text.scope[-1].nodes[text.node], Loop | SubWorkflow)
        if is_group and used(text.template, "nodes", is_expression=text.is_expression) is None:
            what = "a loop or sub-workflow can't look at all of `nodes` here"
            yield self._origins.text_problem(text.path, what, "Name those it waits for.", TextSpot(in_tags=in_tags))

    def _member(self, text: Text, ref: Reference, spot: TextSpot) -> Iterator[Problem]:
        name = ref.name or ""
        is_input = ref.root == "inputs"
        scope = next((body for body in reversed(text.scope) if name in body.nodes), None)
        if name not in self._body.file.inputs if is_input else scope is None:
            kind = "input" if is_input else "node"
            nodes = (node for body in text.scope for node in body.nodes)
            fix = (
                self._advise(name, self._body.file.inputs if is_input else nodes) or f"Declare it below `{ref.root}:`."
            )
            yield self._origins.text_problem(text.path, f"unknown {kind} {quoted(name)} in the template", fix, spot)
        elif not is_input and ref.inner is not None and scope is not None:
            kind, parts = _parts(scope, name)
            if parts is not None and ref.inner not in parts and not hasattr(dict, ref.inner):
                what = f"unknown {kind} {quoted(ref.inner)} of {quoted(name)} in the template"
                yield self._origins.text_problem(text.path, what, self._advise(ref.inner, parts), spot)

    def _needed(self, expansion: Expansion, frame: Frame, text: Text) -> set[str]:
        return expansion.needs.of(frame, text.node, text.template, is_expression=text.is_expression)

    def _spot_of(self, expansion: Expansion, frame: Frame, text: Text, needed: str) -> TextSpot:
        """Return the place of the first reference that needs a node."""
        found = (expression_references if text.is_expression else references)(text.template)
        in_tags = not text.is_expression or "{{" in text.template
        for ref in found.members:
            holder = frame.find(ref.name, text.node)[1] if ref.root == "nodes" and ref.name is not None else None
            taken = {ref.inner} if ref.inner is not None else None
            if holder is not None and needed in expansion.needs.node(holder, ref.name or "", taken):
                return _spot(ref, in_tags)
        return TextSpot(in_tags=in_tags)

    def _meant(self, name: str, known: set[str], text: Text) -> str:
        if name in self._body.file.inputs:
            return f"Did you mean 'inputs.{name}'?"
        if any(name in body.nodes for body in text.scope):
            return f"Did you mean 'nodes.{name}.text'?"
        if name in ("item", "index"):
            return "Only the prompt of a node with `map:` has it."
        if name in ("round", "rounds"):
            return "Only the templates in the body of a `loop:` have it."
        return self._advise(name, known)


def _parts(scope: Body, name: str) -> tuple[str, list[str] | None]:
    """Return what a node has, for people and by name; None where that is not known before it has run."""
    node, inner = scope.nodes[name], scope.inner.get(name)
    if inner is not None:
        return ("node", [*inner.nodes, "rounds"]) if inner.loop else ("output", list(inner.file.outputs))
    if not isinstance(node, Node):
        return "value", None  # a loop that can't be read, or a tool, whose result may have any keys
    if node.output is None:
        return "value", list(NOTHING)
    schema = node.output.json_schema
    known = schema.get("properties")
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return "value", [*NOTHING, *known] if isinstance(known, dict) and is_closed else None


def texts(body: Body, around: tuple[Body, ...] = ()) -> Iterator[Text]:
    """Give every template of a file, in loops as well."""
    scope = (*around, body)
    local = frozenset(["round", "rounds"]) if body.loop else frozenset[str]()
    for name, node in body.nodes.items():
        at = body.node_path(name)
        if node.when is not None:
            yield Text(scope, (*at, "when"), node.when, name, local, is_expression=True)
        if isinstance(node, Loop):
            inner = body.inner[name]
            yield from texts(inner, scope)
        elif isinstance(node, SubWorkflow):
            for key, value in node.inputs.items():
                if isinstance(value, str):
                    yield Text(scope, (*at, "inputs", key), value, name, local)
        else:
            yield from _own_texts(node, Text(scope, at, "", name, local))
    if body.loop is None:
        for name, template in body.file.outputs.items():
            yield Text(scope, ("outputs", name), template)
    elif body.loop.until is not None:
        yield Text(scope, (*body.path, "until"), body.loop.until, None, local, is_expression=True)


def _own_texts(node: AnyNode, where: Text) -> Iterator[Text]:
    """Give the templates that only a plain node has."""

    def text(template: str, *key: str | int, is_expression: bool = False, in_map: bool = True) -> Text:
        local = where.local | ({node.map.item, "index"} if node.map and in_map else set())
        path = (*where.path, *key)
        return replace(where, path=path, template=template, local=local, is_expression=is_expression)

    if isinstance(node, Node):
        yield text(node.prompt, "prompt")
        if node.choose is not None:
            yield text(node.choose, "choose", is_expression=True)
    else:
        for inner, template in texts_in(node.arguments):
            yield text(template, "with", *inner)
    yield text(node.on_error.fallback, "on_error", "fallback")
    if node.map and isinstance(node.map.over, str):
        yield text(node.map.over, "map", "over", is_expression=True, in_map=False)


def _shown(first: str, later: str) -> tuple[str, str]:
    """Return how the ends of an edge between two nodes are written where both can be named."""
    sender, receiver = address(first).split("."), address(later).split(".")
    while len(sender) > 1 and len(receiver) > 1 and sender[0] == receiver[0]:
        sender, receiver = sender[1:], receiver[1:]
    return ".".join(sender), ".".join(receiver)


def _spot(ref: Reference, in_tags: bool) -> TextSpot:
    return TextSpot(ref.line, ref.written, ref.occurrence, in_tags)
