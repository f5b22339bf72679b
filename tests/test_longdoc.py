"""The workflow `longdoc`: what each turn computes, what its workers are sent, and what a comparison varies."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from agentflow.channels.cache import CacheChannel
from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.evaluation.inputs import inputs_of, task_of
from agentflow.models.pool import EnginePool
from agentflow.models.spec import ModelSpec
from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.workflow.loader import load_workflow
from tests.tiny import make_engine, tiny_model

LEADS, WORKERS = ("lead_1", "lead_2", "lead_3"), ("find_1", "find_2", "answer")
PIECES = [
    [f"Room {n}", [f"The code of room {n} is {n}{n}{n}. ", "Nobody has lived there for years. " * 4]] for n in range(6)
]
RECORD = {"_id": "q1", "question": "What is the code of room 4?", "answer": "444", "context": PIECES}


def long_engine(name: str, seed: int):
    model = tiny_model(seed=seed, max_position_embeddings=8192)
    model.generation_config.eos_token_id = None  # random weights would stop at random
    return make_engine(model, name)


@pytest.fixture
def engines() -> EnginePool:
    """Two models: `other`, and one that answers to every other name."""
    engine, other = long_engine("one", 0), long_engine("other", 5)
    return EnginePool(factory=lambda spec: other if spec.model == "other" else engine)


@pytest.fixture
def workflow():
    return load_workflow("longdoc")


@pytest.fixture
def items(workflow, tmp_path):
    data = tmp_path / "data.json"
    data.write_text(json.dumps([RECORD, {**RECORD, "_id": "q2", "question": "What is the code of room 1?"}]))
    return task_of(workflow).items(data=data, limit=None, seed=0)


@dataclass(frozen=True)
class Turn:
    """What one turn computed (`read`), all that it stood on, and its result."""

    read: str
    whole: str
    plan: object
    result: object


@pytest.fixture
def turns(engines, items):
    """The turns of the first item, by node; nothing is found that no channel handed over."""

    def of(workflow) -> dict[str, Turn]:
        seen = {}

        def look(unit, engine, plan, said):
            decode = engine.tokenizer.decode
            seen[unit.node] = decode(plan.request.token_ids), decode(plan.foundation.token_ids), plan

        runner = Orchestrator(bind(workflow), engines, options=RunOptions(reuse=False), probe=look)
        (result,) = runner.run([(items[0].id, inputs_of(workflow, items[0]))])
        assert not result.errors
        return {node: Turn(*seen[node], result.nodes[node][0]) for node in workflow.nodes}

    return of


def codes(text: str) -> list[int]:
    return [n for n in range(6) if f"The code of room {n} is" in text]


def test_the_lead_computes_each_part_of_the_document_once(workflow, turns):
    found = turns(workflow)
    assert [codes(found[lead].read) for lead in LEADS] == [[0, 1], [2, 3], [4, 5]]
    assert [codes(found[lead].whole) for lead in LEADS] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    before = 0
    for lead in LEADS:
        result = found[lead].result
        assert result.reused >= before
        assert result.reused + result.prefilled == len(found[lead].plan.foundation.token_ids)
        before = result.reused + result.prefilled


def test_the_lead_reads_what_the_worker_found_as_a_note(workflow, turns):
    found = turns(workflow)
    for step in (1, 2):
        note = f"Message from find_{step}:\n{found[f'find_{step}'].result.text}"
        assert note in found[f"lead_{step + 1}"].read
        assert [m.channel for m in found[f"lead_{step + 1}"].result.messages] == ["cache", "text"]


def test_workers_over_a_briefing_read_their_own_prompt_only(workflow, turns):
    found = turns(workflow)
    for worker, lead in zip(WORKERS, LEADS, strict=True):
        assert codes(found[worker].read) == []
        assert RECORD["question"] in found[worker].read
        (message,) = found[worker].result.messages
        assert (message.sender, message.channel) == (lead, "latent_briefing")
        assert found[worker].result.reused == message.kept
        assert message.stats["trajectory_tokens"] == 0  # the lead has computed it
    over_text = turns(workflow.with_channel("text"))
    assert codes(over_text["answer"].read) == [0, 1, 2, 3, 4, 5]
    assert found["answer"].result.prefilled < over_text["answer"].result.prefilled / 3


def test_another_model_at_the_workers_encodes_only_what_is_new_of_a_growing_trajectory(workflow, turns):
    other = ModelSpec(model="other", source="tests/other")
    agents = {**workflow.agents, "worker": workflow.agents["worker"].model_copy(update={"model": other.model_dump()})}
    found = turns(workflow.model_copy(update={"agents": agents}))
    before = 0
    for worker in WORKERS:
        (message,) = found[worker].result.messages
        assert codes(found[worker].read) == []
        assert message.stats["trajectory_tokens"] == message.tokens - before > 0
        before = message.tokens


def test_a_comparison_varies_what_workers_are_sent_and_counts_that_alone(workflow, items, engines):
    options = CompareOptions(controls=("no message", "sender alone", "equal positions"), probe=False)
    found = compare(workflow, task_of(workflow), items, ["text", "latent_briefing"], engines, options=options)
    assert not [row.error for row in found.rows if row.error]
    by_text, briefed = found.of("text"), found.of("latent_briefing")
    for text, briefing in zip(by_text, briefed, strict=True):
        assert text.messages == briefing.messages == 3
        assert text.bytes < 20_000  # no cache of the lead's
        assert text.reused == 0
        assert briefing.prefilled < text.prefilled / 2
    for whole, chosen in zip(briefed, found.of("equal positions(latent_briefing)"), strict=True):
        assert chosen.prefilled <= whole.positions + 3 * 2


def test_a_blanked_payload_leaves_the_leads_own_trajectory_alone(workflow, items, engines, monkeypatch):
    sent = []
    send = CacheChannel.send
    monkeypatch.setattr(CacheChannel, "send", lambda self, m, task: sent.append(send(self, m, task)) or sent[-1])
    options = CompareOptions(controls=("zero",), probe=False)
    compare(workflow, task_of(workflow), items[:1], ["latent_briefing"], engines, options=options)
    assert len(sent) == 4  # two arms, two steps on
    assert all(bool(payload.body.cache.values[0].any()) for payload in sent)
