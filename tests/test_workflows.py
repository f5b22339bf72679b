"""The workflows that ship: valid over every channel that fits, and they run with the tasks they are meant for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentflow.channels.registry import channel_names, get_channel, make_channel
from agentflow.errors import WorkflowError
from agentflow.evaluation.compare import NO_SUCH_CONTROL, CompareOptions, compare
from agentflow.evaluation.controls import CONTROLS, SENDER_ALONE
from agentflow.evaluation.inputs import inputs_of, task_of
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator, RunOptions
from agentflow.workflow.library import shipped
from agentflow.workflow.loader import load_workflow
from tests.tiny import make_engine, tiny_model

SHIPPED = shipped("workflows")
UNTRAINED = [name for name in channel_names() if not get_channel(name).trains]
CACHES = [
    "cache",
    {"name": "cache", "drop_sinks": 0},
    {"name": "cache", "recompute": 0.5},
    {"name": "cache", "bits": 8},
]
QUESTION = "Who wrote the book?"
PARAGRAPHS = [(f"Title {n}", f"Sentence {n} is here. It says nothing else.") for n in range(4)]
SQUAD = {
    "id": "s",
    "title": "Towers",
    "context": " ".join(f"Tower {n} of the town is {n} metres tall and was built of stone." for n in range(12)),
    "question": "How tall is tower 7?",
    "answers": {"text": ["7 metres"], "answer_start": [0]},
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": QUESTION,
    "answer": "Ada",
    "answer_aliases": ["Lovelace"],
    "answerable": True,
    "paragraphs": [
        {"idx": n, "title": title, "paragraph_text": text, "is_supporting": n < 2}
        for n, (title, text) in enumerate(PARAGRAPHS)
    ],
}
LONGDOC = {"_id": "n1", "context": "Ada wrote a book. " * 30, "input": QUESTION, "answers": ["Ada"]}


@pytest.fixture(scope="module")
def engines() -> EnginePool:
    """Every model name stands for one tiny model with room for prompts of many byte-long tokens."""
    model = tiny_model("llama", max_position_embeddings=8192)
    model.generation_config.eos_token_id = None  # random weights would stop at random
    engine = make_engine(model, "tiny-long")
    return EnginePool(factory=lambda spec: engine)


@pytest.fixture
def prompts(engines):
    """Run an item over a channel; the whole text that each node's answer stood on, by node."""

    def of(workflow, item, channel) -> dict[str, str]:
        seen: dict[str, str] = {}

        def look(unit, engine, plan, said):
            seen[unit.node] = engine.tokenizer.decode(plan.foundation.token_ids)

        options, binding = RunOptions(reuse=False), bind(workflow.with_channel(channel))
        Orchestrator(binding, engines, options=options, probe=look).run([(item.id, inputs_of(workflow, item))])
        return seen

    return of


def debate_items(n: int):
    workflow = load_workflow("debate")
    task = task_of(workflow, None, {"distractors": 1})
    return workflow, task, task.items(data=None, limit=n, seed=0)


def test_the_workflows_of_the_documents_ship():
    assert {"alfworld", "debate", "hotpotqa", "longdoc", "private_facts"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("channel", UNTRAINED)
def test_every_shipped_workflow_is_valid_over_every_channel_that_fits(name, channel):
    workflow = load_workflow(name)
    binding = bind(workflow)
    pairs = [(binding.model_of(e.sender), binding.model_of(e.receiver)) for e in workflow.edges if not e.fixed]
    if all(make_channel(channel).check(*pair).fits for pair in pairs):
        assert {c.name for c in bind(workflow.with_channel(channel)).compared} == {channel}
    else:
        with pytest.raises(WorkflowError, match=channel):
            bind(workflow.with_channel(channel))


@pytest.mark.parametrize("channel", ["text", {"name": "text", "scope": "answer"}, *CACHES], ids=str)
def test_a_debate_runs_over_text_and_over_caches(channel, engines):
    workflow, task, (item,) = debate_items(1)
    (result,) = Orchestrator(bind(workflow.with_channel(channel)), engines).run([(item.id, inputs_of(workflow, item))])
    assert not result.errors
    assert set(result.outputs) == {"opening_a", "opening_b", "reply_a", "reply_b", "answer"}
    assert [m.sender for m in result.nodes["reply_a"][0].messages] == ["open_b"]
    assert [m.sender for m in result.nodes["reply_b"][0].messages] == ["open_a"]
    assert [m.sender for m in result.nodes["judge"][0].messages] == ["reply_a", "reply_b"]
    assert set(task.score(item, result.answers("judge"))) == set(task.metrics)


@pytest.mark.parametrize("channel", ["text", *CACHES], ids=str)
def test_evidence_is_private_until_it_is_handed_over_and_the_judge_gets_all_of_it(channel, prompts):
    workflow, _, (item,) = debate_items(1)
    seen = prompts(workflow, item, channel)
    held = {side: item.inputs[f"evidence_{side}"] for side in "ab"}
    for own, other in ("ab", "ba"):
        assert all(fact in seen[f"open_{own}"] for fact in held[own])
        assert not any(fact in seen[f"open_{own}"] for fact in held[other])
    for node in ("reply_a", "reply_b", "judge"):
        assert all(fact in seen[node] for facts in held.values() for fact in facts)


def test_a_judge_over_caches_computes_its_own_turn_only(engines):
    workflow, _, (item,) = debate_items(1)
    options = RunOptions(reuse=False)
    prefilled = {}
    for channel in ("text", "cache"):
        orchestrator = Orchestrator(bind(workflow.with_channel(channel)), engines, options=options)
        (result,) = orchestrator.run([(item.id, inputs_of(workflow, item))])
        (judge,) = result.nodes["judge"]
        prefilled[channel] = judge.prefilled
    assert prefilled["cache"] < prefilled["text"] / 3


def test_a_debate_is_compared_with_every_control_but_the_sender_alone(engines):
    workflow, task, items = debate_items(2)
    found = compare(workflow, task, items, ["text", "cache"], engines, options=CompareOptions(controls=tuple(CONTROLS)))
    for row in found.rows:
        if row.arm == SENDER_ALONE:
            assert row.error.startswith(NO_SUCH_CONTROL)  # two nodes send to the judge
        else:
            assert not row.error
            assert row.nll is not None


@pytest.mark.parametrize(
    ("task_name", "key", "record"), [("musique", "id", MUSIQUE), ("longdoc", "_id", LONGDOC), ("squad", "id", SQUAD)]
)
def test_hotpotqa_runs_with_the_tasks_of_the_same_inputs(task_name, key, record, engines, tmp_path: Path):
    data = tmp_path / f"{task_name}.jsonl"
    one, other = (json.dumps({**record, key: f"{record[key]}{n}"}) for n in range(2))
    data.write_text(
        one + "\n" + other.replace(" wrote ", " copied ").replace("stone", "brick").replace("nothing", "little")
    )
    workflow = load_workflow("hotpotqa")
    task = task_of(workflow, task_name)
    items = task.items(data=data, limit=2, seed=0)
    found = compare(workflow, task, items, ["text", "cache"], engines, options=CompareOptions(controls=tuple(CONTROLS)))
    assert not [row.error for row in found.rows if row.error]
    text, cache = found.of("text"), found.of("cache")
    assert [row.answers for row in cache] == [row.answers for row in text]
    assert all(c.prefilled < t.prefilled / 3 for t, c in zip(text, cache, strict=True))


def test_hotpotqa_shows_paragraphs_of_its_own_to_the_worker_alone(prompts, tmp_path: Path):
    data = tmp_path / "musique.jsonl"
    data.write_text(json.dumps(MUSIQUE))
    workflow = load_workflow("hotpotqa")
    task = task_of(workflow, "musique", {"setting": "split"})
    (item,) = task.items(data=data, limit=1, seed=0)
    seen = prompts(workflow, item, "cache")
    own = [document["text"] for document in item.inputs["own_documents"]]
    assert own
    assert not any(text in seen["plan"] for text in own)
    assert all(text in seen["answer"] for text in own)
