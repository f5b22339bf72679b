"""Prompts in the style of ReAct (Yao et al. 2023, arXiv 2210.03629): the room, the task, what was done and seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentflow.tasks.alfworld.episodes import Turn

INSTRUCTION = "Interact with a household to solve a task. Answer with the next action only."
_TASK = re.compile(r"\s*Your task is to:\s*(.+?)\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Opening:
    """The first observation in its two parts: what is seen, and the task ("put a book in sofa.")."""

    room: str
    task: str


def split_opening(observation: str) -> Opening:
    """Return the parts of a game's first observation; the task is "" where it states none.

    Apart, so that a planner may know the task while the actor knows the room.
    """
    found = _TASK.search(observation)
    if found is None:
        return Opening(observation.strip(), "")
    return Opening(observation[: found.start()].strip(), found.group(1))


def react_prompt(
    opening: Opening,
    turns: Sequence[Turn] = (),
    *,
    admissible: Sequence[str] = (),
    plan: str = "",
    last: int | None = None,
    instruction: str = INSTRUCTION,
) -> str:
    """Return the prompt for the next action; it ends in "> ", where the action is to be written.

    Args:
        turns: what was done and seen so far, oldest first.
        admissible: commands to choose from, listed where given.
        plan: a planner's advice, quoted where given.
        last: how many of the turns are shown; all by default. The prompt says how many are not.
    """
    shown = turns if last is None else turns[max(0, len(turns) - last) :]
    blocks = [instruction, opening.room]
    if opening.task:
        blocks.append(f"Your task is to: {opening.task}")
    if plan.strip():
        blocks.append(f"Plan:\n{plan.strip()}")
    if len(shown) < len(turns):
        blocks.append(f"({len(turns) - len(shown)} earlier actions are not shown.)")
    blocks += [f"> {turn.command}\n{turn.observation}" for turn in shown]
    if admissible:
        blocks.append("Possible actions:\n" + "\n".join(admissible))
    return "\n\n".join(block for block in blocks if block) + "\n\n> "
