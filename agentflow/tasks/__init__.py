"""Tasks: what is asked, what counts as right, and which part of an item only the sender sees.

Data and scoring only; nothing here knows a model. One file per task; to add one, subclass `Task` and register
the class in the entry-point group `agentflow.tasks`.
"""

from agentflow.tasks.base import Item, Task, TaskSettings
from agentflow.tasks.registry import get_task, make_task, task_names

__all__ = ["Item", "Task", "TaskSettings", "get_task", "make_task", "task_names"]
