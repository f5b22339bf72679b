"""What a workflow of the right shape can still get wrong: names, edges, cycles, defaults, inputs and the task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from agentflow.workflow.expand import Expansion
from agentflow.workflow.extent import Extent
from agentflow.workflow.frames import Body, address
from agentflow.workflow.graph import build_graph, cycles, graph_of, sinks
from agentflow.workflow.groups import Loop, SubWorkflow
from agentflow.workflow.inputs import WORDS, fits
from agentflow.workflow.location import KeyPath
from agentflow.workflow.outputs import schema_mistakes
from agentflow.workflow.parts import Edge, Node
from agentflow.workflow.problems import Problem, described, quoted, suggestion
from agentflow.workflow.prompts import PromptChecks

if TYPE_CHECKING:
    import networkx as nx

# Finding the closest of many names takes time; nobody reads more than twenty problems.
_MOST_ADVICE = 25


class Checks:
    """Collects the problems of one file; the workflows that it uses are checked as files of their own."""

    def __init__(self, body: Body) -> None:
        self._body, self._file, self._origins = body, body.file, body.origins
        self._advice_left = _MOST_ADVICE

    def problems(self) -> list[Problem]:
        """Return everything that is wrong, in no particular order."""
        found: list[Problem] = []
        is_sound = True
        for scope in self._body.scopes():
            wrong = list(self._edges(scope))
            is_sound &= all(self._is_sound(scope, edge) for edge in scope.edges)
            found += [*self._agents(scope), *wrong, *self._inputs_of_subs(scope), *self._outputs(scope)]
        knots = self._knots()
        found += [*self._cycles(knots), *self._defaults()]
        prompts = PromptChecks(self._body, self.advise)
        found += prompts.problems()
        extent = Extent()
        extent.of(self._body)
        found += extent.problems
        is_whole = all(scope.inner.keys() >= _groups(scope) for scope in self._body.scopes())
        expansion = None
        if is_sound and is_whole and not knots and not extent.problems and not prompts.unreadable:
            expansion = Expansion(self._body, most_rounds=2)
        graph = None
        if expansion is not None:
            graph = build_graph(expansion.workflow(with_task=False))
            circles = list(self._circles(expansion, graph))
            found += circles
            graph = None if circles else graph
        found += self._task(sinks(graph) if graph is not None else [])
        if expansion is not None and graph is not None:
            found += prompts.order(expansion, graph)
        return found

    def advise(self, name: str, known: Iterable[str]) -> str:
        """Return "Did you mean ...?" for the first few problems, then ""."""
        self._advice_left -= 1
        return suggestion(name, known) if self._advice_left >= 0 else ""

    def _unknown(self, path: KeyPath, kind: str, name: str, known: Iterable[str]) -> Problem:
        return self._origins.problem(path, f"unknown {kind} {quoted(name)}", self.advise(name, known))

    # -- nodes and edges ----------------------------------------------------------------------------------

    def _agents(self, scope: Body) -> Iterator[Problem]:
        agents = self._file.agents
        for name, node in scope.nodes.items():
            if isinstance(node, Node) and node.agent not in agents:
                yield self._unknown(scope.node_path(name, "agent"), "agent", node.agent, agents)

    def _outputs(self, scope: Body) -> Iterator[Problem]:
        for name, node in scope.nodes.items():
            if isinstance(node, Node) and node.output is not None:
                path = scope.node_path(name, "output", "schema")
                for inner, what, fix in schema_mistakes(node.output.json_schema):
                    yield self._origins.problem((*path, *inner), what, fix)

    def _is_sound(self, scope: Body, edge: Edge) -> bool:
        ends = scope.walk(edge.sender.split("."), outwards=True), scope.walk(edge.receiver.split("."), outwards=False)
        if ends[0] is None or ends[1] is None:
            return False
        return scope.loop is not None or ends[0][0] != ends[1][0]

    def _edges(self, scope: Body) -> Iterator[Problem]:
        seen: dict[tuple[str, ...], int] = {}
        for number, edge in enumerate(scope.edges):
            path = (*scope.path, "edges", number)
            yield from self._end(scope, (*path, "from"), edge.sender, outwards=True)
            yield from self._end(scope, (*path, "to"), edge.receiver, outwards=False)
            pair = _whole(scope, edge.sender, outwards=True), _whole(scope, edge.receiver, outwards=False)
            if pair in seen:
                ends = f"from {quoted(pair[0])} to {quoted(pair[1])}"
                what = f"a second edge {ends}; edges[{seen[pair]}] is the first"
                yield self._origins.problem(path, what, "Remove one of them.")
            seen.setdefault(pair, number)
            yield from self._loose_ends(scope, path, edge)

    def _end(self, scope: Body, path: KeyPath, end: str, *, outwards: bool) -> Iterator[Problem]:
        """Say where an address leads nowhere."""
        if scope.walk(end.split("."), outwards=outwards) is not None:
            return
        body, way = scope, list[str]()
        for name in end.split("."):
            inside = f" in {quoted('.'.join(way))}" if way else ""
            if name not in body.nodes:
                known = (".".join([*way, other]) for other in body.nodes)
                advice = self.advise(".".join([*way, name]), known)
                yield self._origins.problem(path, f"unknown node {quoted(name)}{inside}", advice)
                return
            way.append(name)
            if name not in body.inner:
                if not isinstance(body.nodes[name], Loop | SubWorkflow):
                    what = f"{quoted('.'.join(way))} is a plain node, so there is nothing in it"
                    yield self._origins.problem(path, what, f"Write {quoted('.'.join(way))}.")
                return  # a workflow that can't be used is told of where it is named
            body = body.inner[name]
        verb, names = ("ends with", body.ends) if outwards else ("begins with", body.begins)
        while len(names) == 1 and names[0] in body.inner:
            way.append(names[0])
            body = body.inner[names[0]]
            names = body.ends if outwards else body.begins
        choice = " or ".join(quoted(".".join([*way, name])) for name in names[:5])
        what = f"{quoted('.'.join(way))} {verb} several nodes, so it is open which is meant"
        yield self._origins.problem(path, what, f"Write {choice}.")

    def _loose_ends(self, scope: Body, path: KeyPath, edge: Edge) -> Iterator[Problem]:
        first, last = (end.partition(".")[0] for end in (edge.sender, edge.receiver))
        if first == last and first in scope.nodes and scope.loop is None:
            if not isinstance(scope.nodes[first], Loop | SubWorkflow):
                yield self._origins.problem(
                    (*path, "to"), f"the node {quoted(first)} can't send to itself", "Name another node."
                )
            else:
                fix = f"Write it into the `edges:` of {quoted(first)}."
                yield self._origins.problem((*path, "to"), f"both ends of this edge are in {quoted(first)}", fix)
        way = scope.walk(edge.receiver.split("."), outwards=False)
        if edge.rounds != "each" and way and not any(isinstance(body.nodes[name], Loop) for body, name in way):
            what = f"{quoted(edge.receiver)} is not in a loop, so there are no rounds to choose from"
            yield self._origins.problem((*path, "rounds"), what, "Remove `rounds`.", key=True)

    def _knots(self) -> list[list[str]]:
        pairs = ((edge.sender.partition(".")[0], edge.receiver.partition(".")[0]) for edge in self._body.edges)
        return [knot for knot in cycles(graph_of(self._body.nodes, pairs)) if len(knot) > 2]

    def _cycles(self, knots: list[list[str]]) -> Iterator[Problem]:
        if not knots:
            return
        firsts = [tuple(end.partition(".")[0] for end in (e.sender, e.receiver)) for e in self._body.edges]
        numbers = {pair: number for number, pair in enumerate(firsts)}
        for knot in knots:
            closing = numbers[knot[-2], knot[-1]]
            shown = knot if len(knot) <= 20 else [*knot[:10], "…", *knot[-9:]]
            what = f"the edges form a cycle: {' -> '.join(shown)}"
            fix = "Remove one of them: messages go one way. What is done again and again goes into a `loop:`."
            yield self._origins.problem(("edges", closing), what, fix)

    def _circles(self, expansion: Expansion, graph: nx.DiGraph[str]) -> Iterator[Problem]:
        """Loops and sub-workflows that wait, by what their own templates look at, for what waits for them."""
        for body, path in expansion.needs.circles:
            yield body.origins.problem(path, "these inputs depend on themselves", "Name other nodes.")
        for knot in cycles(graph):
            for first, later in pairwise(knot):
                if (first, later) in expansion.borrowed:
                    body, path = expansion.borrowed[first, later]
                    what = f"this waits for {quoted(address(first))}, which waits for it"
                    yield body.origins.problem(path, what, "Name a node that ends before.")
                    break

    # -- everything else ----------------------------------------------------------------------------------

    def _inputs_of_subs(self, scope: Body) -> Iterator[Problem]:
        for name, node in scope.nodes.items():
            if not isinstance(node, SubWorkflow) or name not in scope.inner:
                continue
            declared = scope.inner[name].file.inputs
            for given, value in node.inputs.items():
                path = scope.node_path(name, "inputs", given)
                if given not in declared:
                    what = f"the workflow {quoted(node.workflow)} has no input {quoted(given)}"
                    fix = self.advise(given, declared) or "It takes no inputs."
                    yield self._origins.problem(path, what, fix, key=True)
                elif not isinstance(value, str) and not fits(declared[given].type, value):
                    what = f"the input must be {WORDS[declared[given].type]}, got {described(value)}"
                    yield self._origins.problem(path, what)
            for missing in [n for n, spec in declared.items() if spec.required and n not in node.inputs]:
                what = f"the input {quoted(missing)} of the workflow {quoted(node.workflow)} is missing"
                yield self._origins.problem(
                    scope.node_path(name), what, f"Add `{missing}: ...` to its `inputs:`.", key=True
                )

    def _defaults(self) -> Iterator[Problem]:
        for name, spec in self._file.inputs.items():
            unset = spec.required or spec.default is None
            if not unset and not fits(spec.type, spec.default):
                what = f"the default must be {WORDS[spec.type]}, got {described(spec.default)}"
                yield self._origins.problem(("inputs", name, "default"), what)

    def _task(self, ends: list[str]) -> Iterator[Problem]:
        task = self._file.task
        if task is None:
            return
        if task.answer is not None:
            yield from self._end(self._body, ("task", "answer"), task.answer, outwards=True)
        elif len(ends) > 1:
            names = list(dict.fromkeys(map(address, ends)))
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            what = f"the workflow ends in several nodes ({shown}), so it is open whose text is scored"
            yield self._origins.problem(("task",), what, f"Write `task: {{name: {task.name}, answer: {names[-1]}}}`.")


def _groups(scope: Body) -> set[str]:
    return {name for name, node in scope.nodes.items() if isinstance(node, Loop | SubWorkflow)}


def _whole(scope: Body, end: str, *, outwards: bool) -> str:
    """Return the whole address of an edge's end: of the node that a loop or a sub-workflow stands for."""
    way = scope.walk(end.split("."), outwards=outwards)
    return ".".join(name for _, name in way) if way else end
