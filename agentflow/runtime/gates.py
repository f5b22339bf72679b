"""Whether a unit has its turn: its own `when`, and what the loops and sub-workflows around it say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentflow.errors import UserError
from agentflow.runtime.events import Bus
from agentflow.runtime.questions import Questions
from agentflow.runtime.scheduler import Unit
from agentflow.runtime.state import ItemState
from agentflow.workflow.frames import Frame
from agentflow.workflow.location import KeyPath
from agentflow.workflow.meaning import Meaning
from agentflow.workflow.schema import Workflow
from agentflow.workflow.templates import evaluate


@dataclass(frozen=True)
class Closed:
    """Why a unit has no turn: it is left out, or its loop has `ended` and an earlier round stands for it."""

    reason: str
    ended: bool = False


@dataclass(eq=False)
class Gates:
    """Asks the conditions of one run; each that holds for several units is asked once."""

    workflow: Workflow
    questions: Questions
    bus: Bus
    _begun: dict[tuple[str, str], int] = field(default_factory=dict)  # item and loop: the round that has been let in
    _wanted: dict[tuple[str, str], bool] = field(default_factory=dict)  # item and loop or sub-workflow

    def closed(self, unit: Unit, state: ItemState) -> Closed | None:
        """Why a node that is ready has no turn; None where it has one.

        Raises:
            UserError: a condition can't be evaluated, or is neither true nor false.
        """
        layout = self.workflow.layout
        for frame in layout.frames[unit.node].chain[1:]:
            assert frame.outer is not None
            if frame.step is not None and frame.step.when is not None and not self._is_wanted(frame, state):
                return Closed(f"when: {frame.step.when}")
            if frame.number and self._has_ended(frame, state):
                previous = frame.previous
                assert previous is not None
                earlier = previous.prefix + unit.node[len(frame.prefix) :]
                state.passed[unit.node] = state.source(earlier)
                return Closed("", ended=True)
        frame, local = layout.frames[unit.node], layout.local(unit.node)
        when = self.workflow.nodes[unit.node].when
        if when is not None:
            context = self.questions.context(unit.node, when, state, is_expression=True)
            if not _says(when, context, frame, frame.body.node_path(local, "when")):
                return Closed(f"when: {when}")
        return None

    def _is_wanted(self, frame: Frame, state: ItemState) -> bool:
        key = (state.id, frame.group)
        if key not in self._wanted:
            outer, step = frame.outer, frame.step
            assert outer is not None
            assert step is not None
            assert step.when is not None
            path = outer.body.node_path(frame.name, "when")
            context = Meaning(state).context(outer, frame.name, step.when, is_expression=True)
            self._wanted[key] = _says(step.when, context, outer, path)
        return self._wanted[key]

    def _has_ended(self, frame: Frame, state: ItemState) -> bool:
        """Whether a loop needs no round like this one; asked when the round before is through."""
        loop, key = frame.body.loop, (state.id, frame.group)
        if frame.group in state.ended:
            return True
        if loop is None or loop.until is None or self._begun.get(key, 0) == frame.number:
            return False
        previous = frame.previous
        assert previous is not None
        assert frame.number is not None
        context = Meaning(state).context(previous, None, loop.until, is_expression=True)
        if _says(loop.until, context, frame, (*frame.body.path, "until"), word="until"):
            state.ended[frame.group] = frame.number
            self.bus.emit("loop_ended", item=state.id, node=frame.group, rounds=frame.number, of=loop.max)
            return True
        self._begun[key] = frame.number
        return False


def _says(condition: str, context: Mapping[str, Any], frame: Frame, path: KeyPath, *, word: str = "when") -> bool:
    """Evaluate a condition that stands at a place of the frame's file."""
    where = str(frame.body.origins.location(path))
    said = evaluate(condition, context, where=where)
    if not isinstance(said, bool):
        fix = "Compare it with something, as in `inputs.count > 0`."
        raise UserError(f"`{word}` gave {said!r:.60}, which is neither true nor false.", where=where, fix=fix)
    return said
