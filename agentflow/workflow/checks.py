"""What a workflow of the right shape can still get wrong: names, edges, cycles, defaults and the task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentflow.workflow.graph import cycles, graph_of, sinks
from agentflow.workflow.inputs import WORDS, fits
from agentflow.workflow.location import KeyPath
from agentflow.workflow.origins import Origins
from agentflow.workflow.parts import Edge, Node
from agentflow.workflow.problems import Problem, described, quoted, suggestion
from agentflow.workflow.prompts import PromptChecks
from agentflow.workflow.schema import Workflow

# Finding the closest of many names takes time; nobody reads more than twenty problems.
_MOST_ADVICE = 25


class Checks:
    """Collects the problems of one workflow."""

    def __init__(self, workflow: Workflow, origins: Origins) -> None:
        self._workflow, self._origins = workflow, origins
        self._advice_left = _MOST_ADVICE

    def problems(self) -> list[Problem]:
        """Return everything that is wrong, in no particular order."""
        workflow = self._workflow
        graph = graph_of(workflow.nodes, ((edge.sender, edge.receiver) for edge in workflow.edges))
        knots = [knot for knot in cycles(graph) if len(knot) > 2]
        found = [*self._agents(), *self._edges(), *self._cycles(knots), *self._defaults()]
        is_ordered = not knots and all(map(self._is_sound, workflow.edges))
        found += self._task(sinks(graph) if is_ordered else [])
        prompts = PromptChecks(workflow, self._origins, self.advise)
        return found + prompts.problems(graph if is_ordered else None)

    def advise(self, name: str, known: Iterable[str]) -> str:
        """Return "Did you mean ...?" for the first few problems, then ""."""
        self._advice_left -= 1
        return suggestion(name, known) if self._advice_left >= 0 else ""

    def _is_sound(self, edge: Edge) -> bool:
        nodes = self._workflow.nodes
        return edge.sender in nodes and edge.receiver in nodes and edge.sender != edge.receiver

    def _unknown(self, path: KeyPath, kind: str, name: str, known: Iterable[str]) -> Problem:
        return self._origins.problem(path, f"unknown {kind} {quoted(name)}", self.advise(name, known))

    def _agents(self) -> Iterator[Problem]:
        agents = self._workflow.agents
        for name, node in self._workflow.nodes.items():
            if isinstance(node, Node) and node.agent not in agents:
                yield self._unknown(("nodes", name, "agent"), "agent", node.agent, agents)

    def _edges(self) -> Iterator[Problem]:
        nodes = self._workflow.nodes
        seen: dict[tuple[str, str], int] = {}
        for number, edge in enumerate(self._workflow.edges):
            for key, name in (("from", edge.sender), ("to", edge.receiver)):
                if name not in nodes:
                    yield self._unknown(("edges", number, key), "node", name, nodes)
            pair = (edge.sender, edge.receiver)
            if pair in seen:
                ends = f"from {quoted(pair[0])} to {quoted(pair[1])}"
                what = f"a second edge {ends}; edges[{seen[pair]}] is the first"
                yield self._origins.problem(("edges", number), what, "Remove one of them.")
            seen.setdefault(pair, number)
            if edge.sender == edge.receiver and edge.sender in nodes:
                what = f"the node {quoted(edge.sender)} can't send to itself"
                yield self._origins.problem(("edges", number, "to"), what, "Name another node.")

    def _cycles(self, knots: list[list[str]]) -> Iterator[Problem]:
        if not knots:
            return
        numbers = {(edge.sender, edge.receiver): n for n, edge in enumerate(self._workflow.edges)}
        for knot in knots:
            closing = numbers[knot[-2], knot[-1]]
            shown = knot if len(knot) <= 20 else [*knot[:10], "…", *knot[-9:]]
            what = f"the edges form a cycle: {' -> '.join(shown)}"
            yield self._origins.problem(("edges", closing), what, "Remove one of them: messages go one way.")

    def _defaults(self) -> Iterator[Problem]:
        for name, spec in self._workflow.inputs.items():
            unset = spec.required or spec.default is None
            if not unset and not fits(spec.type, spec.default):
                what = f"the default must be {WORDS[spec.type]}, got {described(spec.default)}"
                yield self._origins.problem(("inputs", name, "default"), what)

    def _task(self, ends: list[str]) -> Iterator[Problem]:
        task, nodes = self._workflow.task, self._workflow.nodes
        if task is None:
            return
        if task.answer is not None and task.answer not in nodes:
            yield self._unknown(("task", "answer"), "node", task.answer, nodes)
        elif task.answer is None and len(ends) > 1:
            shown = ", ".join(ends[:5]) + (", …" if len(ends) > 5 else "")
            what = f"the workflow ends in several nodes ({shown}), so it is open whose text is scored"
            yield self._origins.problem(("task",), what, f"Write `task: {{name: {task.name}, answer: {ends[-1]}}}`.")
