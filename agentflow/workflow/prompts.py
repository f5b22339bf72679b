"""Checks of the templates in a workflow: syntax, and that what they refer to exists and has run before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from agentflow.workflow.graph import unreached
from agentflow.workflow.location import KeyPath
from agentflow.workflow.origins import Origins, TextSpot
from agentflow.workflow.parts import AnyNode, Node, texts_in
from agentflow.workflow.problems import Problem, quoted
from agentflow.workflow.references import (
    Reference,
    References,
    TemplateError,
    expression_references,
    references,
)
from agentflow.workflow.schema import Workflow

if TYPE_CHECKING:
    import networkx as nx

Advise = Callable[[str, Iterable[str]], str]


class PromptChecks:
    """Collects what is wrong with the prompts, expressions and outputs of one workflow."""

    def __init__(self, workflow: Workflow, origins: Origins, advise: Advise) -> None:
        self._workflow, self._origins, self._advise = workflow, origins, advise
        self._waits: dict[tuple[str, str], tuple[KeyPath, TextSpot]] = {}

    def problems(self, graph: nx.DiGraph[str] | None) -> list[Problem]:
        """Return everything that is wrong; without a graph (it has cycles) order is not checked."""
        found: list[Problem] = []
        for name, node in self._workflow.nodes.items():
            found += self._prompt(name, node)
        for name, template in self._workflow.outputs.items():
            found += self._text(("outputs", name), template)
        if graph is not None:
            found += self._order(graph)
        return found

    def _prompt(self, name: str, node: AnyNode) -> Iterator[Problem]:
        local = {node.map.item, "index"} if node.map else set()
        if isinstance(node, Node):
            yield from self._text(("nodes", name, "prompt"), node.prompt, name, local)
            if node.choose is not None:
                yield from self._text(("nodes", name, "choose"), node.choose, name, local, is_expression=True)
        else:
            for path, text in texts_in(node.arguments):
                yield from self._text(("nodes", name, "with", *path), text, name, local)
        yield from self._text(("nodes", name, "on_error", "fallback"), node.on_error.fallback, name, local)
        if node.map and isinstance(node.map.over, str):
            yield from self._text(("nodes", name, "map", "over"), node.map.over, name, is_expression=True)
        if node.when is not None:
            yield from self._text(("nodes", name, "when"), node.when, name, is_expression=True)

    def _text(
        self,
        path: KeyPath,
        text: str,
        node: str | None = None,
        local: Iterable[str] = (),
        is_expression: bool = False,
    ) -> Iterator[Problem]:
        in_tags = not is_expression or "{{" in text
        try:
            found: References = (expression_references if is_expression else references)(text)
        except TemplateError as error:
            spot = TextSpot(error.line or 1, error.near, in_tags=in_tags)
            yield self._origins.text_problem(path, error.what, error.fix or "", spot)
            return
        known = {"inputs", "nodes", *local}
        for ref in found.names:
            if ref.root not in known:
                fix = self._meant(ref.root, known)
                what = f"unknown name {quoted(ref.root)} in the template"
                yield self._origins.text_problem(path, what, fix, _spot(ref, in_tags))
        for ref in found.members:
            yield from self._member(path, ref, _spot(ref, in_tags), node)

    def _member(self, path: KeyPath, ref: Reference, spot: TextSpot, node: str | None) -> Iterator[Problem]:
        name = ref.name or ""
        is_input = ref.root == "inputs"
        known: Iterable[str] = self._workflow.inputs if is_input else self._workflow.nodes
        if name not in known:
            kind = "input" if is_input else "node"
            fix = self._advise(name, known) or f"Declare it below `{ref.root}:`."
            yield self._origins.text_problem(path, f"unknown {kind} {quoted(name)} in the template", fix, spot)
        elif not is_input and node is not None:
            self._waits.setdefault((name, node), (path, spot))

    def _order(self, graph: nx.DiGraph[str]) -> Iterator[Problem]:
        for first, node in sorted(unreached(graph, self._waits)):
            path, spot = self._waits[first, node]
            if first == node:
                what, fix = f"the node {quoted(node)} can't use its own result", "Name another node."
            else:
                what = f"no edge leads from {quoted(first)} to {quoted(node)}, so it may not have run yet"
                fix = f"Add an edge from {first}: `- {{from: {first}, to: {node}}}`."
            yield self._origins.text_problem(path, what, fix, spot)

    def _meant(self, name: str, known: set[str]) -> str:
        if name in self._workflow.inputs:
            return f"Did you mean 'inputs.{name}'?"
        if name in self._workflow.nodes:
            return f"Did you mean 'nodes.{name}.text'?"
        if name in ("item", "index"):
            return "Only the prompt of a node with `map:` has it."
        return self._advise(name, known)


def _spot(ref: Reference, in_tags: bool) -> TextSpot:
    return TextSpot(ref.line, ref.written, ref.occurrence, in_tags)
