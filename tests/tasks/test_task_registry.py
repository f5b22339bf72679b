from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from agentflow import plugins
from agentflow.errors import UserError
from agentflow.tasks import get_task, make_task, registry, task_names
from agentflow.tasks.alfworld.task import AlfWorld
from agentflow.tasks.base import Task
from agentflow.tasks.debate import Debate
from agentflow.tasks.hotpotqa import HotpotQA
from agentflow.tasks.longdoc import LongDoc
from agentflow.tasks.musique import MuSiQue
from agentflow.tasks.private_facts import PrivateFacts, PrivateFactsSettings
from agentflow.tasks.squad import SQuAD

BUILT_IN: list[type[Task]] = [AlfWorld, Debate, HotpotQA, LongDoc, MuSiQue, PrivateFacts]


def test_tasks_are_found_by_name() -> None:
    assert {"hotpotqa", "private_facts"} <= set(task_names())
    assert get_task("hotpotqa") is HotpotQA
    task = make_task("private_facts", {"level": "easy", "kind": "names"})
    assert task.settings == PrivateFactsSettings(facts=4, questions=1, hops=1, kind="names", level="easy")


def test_an_unknown_task_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"Unknown task 'hotpotq'\. Did you mean 'hotpotqa'"):
        get_task("hotpotq")


@pytest.mark.parametrize(
    ("value", "message"),
    [("agentflow.nowhere:X", "can't be loaded"), ("agentflow.tasks.scores:f1", "not a Task class")],
)
def test_a_broken_plug_in_is_named(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    entry = EntryPoint("broken", value, registry.GROUP)
    monkeypatch.setattr(plugins, "_registered", lambda group: {"broken": entry})
    with pytest.raises(UserError, match=message):
        get_task("broken")


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (HotpotQA, {"paragraph": 3}, r"unknown setting 'paragraph' \(did you mean 'paragraphs'\?\)"),
        (HotpotQA, {"setting": "ful"}, "setting 'setting' must be 'full' or 'split', not 'ful'"),
        (HotpotQA, {"paragraphs": "x"}, "setting 'paragraphs' must be a whole number, not 'x'"),
        (HotpotQA, {"paragraphs": 1}, "must be at least 2, not 1"),
        (HotpotQA, {"shuffle": "perhaps"}, "must be true or false"),
        (
            PrivateFacts,
            {"facts": 2.5, "hops": 3},
            "'facts' must be a whole number.*; .*'hops' must be 1 or 2",
        ),
        (PrivateFacts, {"facts": 2, "questions": 3}, "3 questions can't be asked about 2 facts"),
        (PrivateFacts, {"level": "eazy"}, "'easy', 'medium' or 'hard', not 'eazy'"),
    ],
)
def test_wrong_settings_are_one_plain_error(task: type[Task], settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        registry.build(task, task.name, settings)
    assert "pydantic" not in str(caught.value).lower()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", BUILT_IN)
def test_every_task_states_what_it_measures(task: type[Task]) -> None:
    assert task.primary in task.metrics
    assert task.private
    assert all(field.description for field in task.Settings.model_fields.values())
    with pytest.raises(TypeError, match="takes"):
        task(PrivateFactsSettings() if task is not PrivateFacts else HotpotQA.Settings())


@pytest.mark.parametrize("task", BUILT_IN)
def test_a_limit_below_one_is_refused(task: type[Task]) -> None:
    with pytest.raises(UserError, match="at least 1, not 0"):
        task().items(data=None, limit=0, seed=0)


@pytest.mark.parametrize("task", [AlfWorld, HotpotQA, LongDoc, MuSiQue, SQuAD])
def test_a_file_task_without_data_says_so(task: type[Task]) -> None:
    with pytest.raises(UserError, match="needs a data file"):
        task().items(data=None, limit=None, seed=0)
