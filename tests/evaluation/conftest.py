from __future__ import annotations

import pytest

from agentflow.models.pool import EnginePool
from agentflow.tasks.registry import make_task
from agentflow.workflow.loader import parse_workflow
from tests.tiny import tiny_engine

WORKFLOW = """
workflow: facts
task: {name: private_facts, answer: answer, level: easy, questions: 2}
inputs: {facts: list, questions: list}
agents:
  reader: {model: {source: tests/tiny, model: tiny}, system: remember}
  answerer: {model: {source: tests/tiny, model: tiny}, system: answer}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  answer: {agent: answerer, map: {over: inputs.questions, as: q}, prompt: "{{ q }}", max_new_tokens: 5}
edges: [{from: read, to: answer, channel: cache}]
outputs: {answers: "{{ nodes.answer.texts }}"}
"""


@pytest.fixture
def workflow():
    return parse_workflow(WORKFLOW)


@pytest.fixture
def task():
    return make_task("private_facts", {"level": "easy", "questions": 2})


@pytest.fixture
def engines():
    return EnginePool(factory=lambda spec: tiny_engine())
