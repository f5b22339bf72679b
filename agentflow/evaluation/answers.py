"""What counts as the answer of an item: what a node said, or how an episode ended."""

from __future__ import annotations

from agentflow.errors import UserError
from agentflow.runtime.results import ItemResult
from agentflow.tasks.base import Item, Task
from agentflow.tasks.interactive import Outcome


def predictions(task: Task, item: Item, result: ItemResult, node: str) -> tuple[str, ...]:
    """The item's answers as its task scores them; of an episode, its outcome, and nothing where the item failed.

    Raises:
        UserError: the tool that should say how an episode ended says something else.
    """
    if not task.interactive:
        return result.scored(node, len(item.answers))
    if result.errors:
        return ()
    ended = result.nodes.get(node, ())
    return tuple(_outcome(node, r.value).to_text() for r in ended) or (Outcome(False, 0).to_text(),) * len(item.answers)


def steps_of(task: Task, answers: tuple[str, ...]) -> int | None:
    """Commands of the item's episodes; None where its task has none."""
    return sum(Outcome.from_text(answer).steps for answer in answers) if task.interactive else None


def _outcome(node: str, value: object) -> Outcome:
    try:
        if isinstance(value, dict):
            return Outcome(value["won"], value["steps"])
    except (KeyError, ValueError):
        pass
    raise UserError(
        f"'{node}' does not say how the episode ended.", fix="Its tool must give a mapping with `won` and `steps`."
    )
