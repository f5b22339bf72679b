"""Channels that choose or write texts, in whole runs: each receiver's own message, and what it cost on the way."""

from __future__ import annotations

import pytest

from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.results import NodeResult

FAN = """
workflow: fan
inputs: {questions: list}
agents:
  reader: {model: MODEL, system: remember}
  worker: {model: MODEL}
nodes:
  read: {agent: reader, prompt: "The copper is red. The violin is blue. The tower is tall.", max_new_tokens: 0}
  ask: {agent: worker, map: {over: inputs.questions, as: q}, prompt: "{{ q }}", max_new_tokens: 3}
  judge: {agent: worker, prompt: "decide", max_new_tokens: 3}
edges:
  - {from: read, to: ask}
  - {from: ask, to: judge}
outputs: {answers: "{{ nodes.ask.texts }}"}
"""
INPUTS = {"questions": ["which violin", "which tower"]}


@pytest.fixture
def run(flow, engines):
    """Run the workflow over a channel; the result, and the last turn that each unit was shown."""

    def over(channel):
        seen = {}

        def look(unit, engine, plan, said):
            seen[unit.node, unit.child] = plan.turns[-1].content

        workflow = flow(FAN).with_channel(channel)
        made = Orchestrator(bind(workflow), engines, probe=look, options=RunOptions(reuse=False))
        (result,) = made.run([("one", INPUTS)])
        assert not result.errors
        return result, seen

    return over


def test_each_worker_gets_the_sentence_that_its_own_question_needs(run):
    result, seen = run({"name": "retrieval", "limit": "top_k", "top_k": 1})
    assert seen["ask", 0] == "The violin is blue.\n\nwhich violin"
    assert seen["ask", 1] == "The tower is tall.\n\nwhich tower"
    assert "Conversation of ask:" in seen["judge", None]  # of two senders
    (message,) = result.nodes["ask"][0].messages
    assert message.losses == ("1 of 3 sentences passed",)
    assert (message.prefilled, message.generated) == (0, 0)  # no model runs on the way


@pytest.mark.parametrize("by", ["receiver", "sender"])
def test_what_a_summary_cost_is_counted_with_its_receiver(run, by):
    result, seen = run({"name": "summary", "max_tokens": 6, "by": by})
    assert seen["ask", 0].startswith("Message from read:\n")
    assert seen["ask", 0].endswith("\n\nwhich violin")
    assert seen["judge", None].count("Message from ask:\n") == 2
    for worker in result.nodes["ask"]:
        (message,) = worker.messages
        assert message.prefilled == message.stats["prefilled"] > 0
        assert 0 < message.generated == message.stats["generated"] <= 6
        assert worker.all_prefilled == worker.prefilled + message.prefilled
        assert worker.all_generated == worker.generated + message.generated
        assert NodeResult.from_json(worker.to_json()) == worker
        assert message.prefilled < message.tokens + 150  # the trajectory's cache was there


def test_encoding_a_senders_words_is_counted_with_the_receiver(run):
    result, _ = run({"name": "latent_briefing", "least": 1})
    for worker in result.nodes["ask"]:
        (message,) = worker.messages
        assert message.prefilled > 0  # the task's queries, at the least
        assert message.generated == 0
