"""A dry run: what would become of every unit, and why, without a model.

Which weights a model has is known only when they are loaded. Those of a stored result are taken to be the ones that
would be asked now; if they are others, its units run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentflow.errors import UserError
from agentflow.runtime.binding import Binding
from agentflow.runtime.events import Bus
from agentflow.runtime.gates import Gates
from agentflow.runtime.questions import Questions
from agentflow.runtime.records import Record
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.workflow.meaning import Needs, needed
from agentflow.workflow.parts import AnyNode, Node, templates_of
from agentflow.workflow.templates import evaluate

Verdict = Literal["runs", "done", "depends", "skipped", "fails", "not asked for"]


@dataclass(frozen=True)
class Foreseen:
    """What would become of a unit; a map whose list is not known yet is one unit.

    Attributes:
        verdict: `depends` where a node that runs before decides: whether it is reached, or whether it is done.
    """

    unit: Unit
    verdict: Verdict
    because: str = ""


def rehearse(
    binding: Binding,
    items: Iterable[tuple[str, dict[str, Any]]],
    *,
    seed: int,
    until: str | None = None,
    stored: Mapping[Unit, Record] | None = None,
    forced: Collection[str] = (),
) -> list[Foreseen]:
    """Go through every item's nodes in the order in which they would run.

    Args:
        stored: the results of the run that would be resumed.
        forced: nodes that would run in any case.
    """
    wanted = set(binding.until(until))
    questions = Questions(binding, seed)
    found: list[Foreseen] = []
    for item, inputs in items:
        rehearsal = _Rehearsal(binding, questions, ItemState(item, inputs), stored or {}, frozenset(forced))
        for node in binding.order:
            if node in wanted:
                found += [one for one in rehearsal.of(node) if one.unit.node not in rehearsal.state.passed]
            else:
                found.append(Foreseen(Unit(item, node), "not asked for"))
    return found


class _Rehearsal:
    """One item's way. What nodes said is in `state` as far as it is known."""

    def __init__(
        self,
        binding: Binding,
        questions: Questions,
        state: ItemState,
        stored: Mapping[Unit, Record],
        forced: frozenset[str],
    ) -> None:
        self._binding, self._questions, self.state = binding, questions, state
        self._stored, self._forced = stored, forced
        self._begun = {unit.node for unit in stored if unit.item == state.id}
        self._gates = Gates(binding.workflow, questions, Bus())
        self._skipped: set[str] = set()
        self._failing: set[str] = set()

    def of(self, name: str) -> list[Foreseen]:
        """What would become of a node's units."""
        node, whole = self._binding.workflow.nodes[name], Unit(self.state.id, name)
        try:
            found = self._left_out(whole, node) or list(self._units(whole, node))
        except UserError as error:
            found = [Foreseen(whole, "fails", error.what)]
        if any(one.verdict == "fails" for one in found) and node.on_error.action == "fail":
            self._failing.add(name)
        if found and all(one.verdict == "skipped" for one in found):
            self._skipped.add(name)
        if all(one.verdict in ("done", "skipped") for one in found):
            self.state.results.setdefault(name, {})
            for one in found:
                if one.verdict == "done":
                    self.state.take(self._stored[one.unit])
        return found

    def _left_out(self, whole: Unit, node: AnyNode) -> list[Foreseen]:
        """The word on a node that is left out, or may be; empty where it is reached."""
        senders = [self.state.source(edge.sender) for _, edge, _ in self._binding.incoming(whole.node)]
        failing = [sender for sender in senders if sender in self._failing]
        if failing:
            self._failing.add(whole.node)
            return [Foreseen(whole, "skipped", f"'{failing[0]}' fails")]
        if senders and self._skipped.issuperset(senders):
            return [Foreseen(whole, "skipped", f"hears nobody: '{senders[0]}' is skipped")]
        for condition, seen in self._conditions(whole.node, node):
            open_nodes = [name for name in seen if name not in self.state.results]
            if open_nodes:
                return [Foreseen(whole, "depends", f"{condition}; {_names(open_nodes)} decides")]
        closed = self._gates.closed(whole, self.state)
        return [Foreseen(whole, "skipped", closed.reason or "its loop has ended")] if closed else []

    def _conditions(self, name: str, node: AnyNode) -> Iterator[tuple[str, Iterable[str]]]:
        """What decides on a node, the outermost first, and the nodes that it looks at."""
        needs, source = Needs(), self.state.source
        for frame in self._binding.workflow.layout.frames[name].chain[1:]:
            step, loop = frame.step, frame.body.loop
            if step is not None and step.when is not None and frame.outer is not None:
                seen = needs.of(frame.outer, frame.name, step.when, is_expression=True)
                yield f"when: {step.when}", sorted(map(source, seen))
            if loop is not None and loop.until is not None and frame.previous is not None:
                if frame.group in self.state.ended:
                    return
                yield f"until: {loop.until}", needs.of(frame.previous, None, loop.until, is_expression=True)
        if node.when is not None:
            yield f"when: {node.when}", self._open(name, node.when, is_expression=True)

    def _units(self, whole: Unit, node: AnyNode) -> Iterator[Foreseen]:
        if node.map is None:
            yield self._unit(whole, node)
            return
        over = node.map.over
        if isinstance(over, str):
            open_nodes = self._open(whole.node, over, is_expression=True)
            if open_nodes:
                verdict: Verdict = "depends" if whole.node in self._begun - self._forced else "runs"
                yield Foreseen(whole, verdict, f"over a list of {_names(open_nodes)}")
                return
            context = self._questions.context(whole.node, over, self.state, is_expression=True)
            over = evaluate(over, context)
        if not isinstance(over, list | tuple):
            raise UserError(f"'{whole.node}' maps over {node.map.over!r}, which is no list.")
        self.state.elements[whole.node] = list(over)
        for child in range(len(over)):
            yield self._unit(Unit(whole.item, whole.node, child), node)

    def _unit(self, unit: Unit, node: AnyNode) -> Foreseen:
        shown = [name for text in templates_of(node) for name in self._open(unit.node, text)]
        open_nodes = list(shown)
        if isinstance(node, Node):  # a tool hears its arguments alone
            senders = {self.state.source(edge.sender) for _, edge, _ in self._binding.incoming(unit.node)}
            open_nodes += [name for name in senders if name not in self.state.results]
        record = self._stored.get(unit)
        if unit.node in self._forced or record is None:
            if not shown:  # it would fail where this does
                (self._questions.of if isinstance(node, Node) else self._questions.call)(unit, self.state)
            return Foreseen(unit, "runs", "forced" if unit.node in self._forced else "no result yet")
        if open_nodes:
            return Foreseen(unit, "depends", f"done, if {_names(open_nodes)} says what it said before")
        changed = self._questions.changed(record, unit, self.state, record.model)
        return (
            Foreseen(unit, "runs", f"asked otherwise now: {', '.join(changed)}") if changed else Foreseen(unit, "done")
        )

    def _open(self, node: str, template: str, *, is_expression: bool = False) -> list[str]:
        """The nodes that a template looks at and that have not said anything yet."""
        seen = needed(self._binding.workflow.layout, node, template, is_expression=is_expression)
        names = self._questions.above(node) if seen is None else sorted(map(self.state.source, seen))
        return [name for name in names if name not in self.state.results]


def _names(nodes: Iterable[str]) -> str:
    """One of them, and how many more there are."""
    first, *others = sorted(set(nodes))
    return f"'{first}'" + (f" and {len(others)} more" if others else "")
