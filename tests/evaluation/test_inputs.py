from __future__ import annotations

import pytest

from agentflow.errors import UserError
from agentflow.evaluation.inputs import task_of
from agentflow.workflow import load_workflow


def test_a_task_of_episodes_is_refused_before_anything_is_loaded():
    with pytest.raises(UserError, match=r"'alfworld' are episodes.*must be a tool"):
        task_of(load_workflow("private_facts"), "alfworld")
