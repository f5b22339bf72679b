"""A workflow that uses most of the language, and a way to break it at a marked place."""

from __future__ import annotations

MARK = "«"

GOOD = """\
workflow: demo
description: Reads, then answers.
inputs:
  question: string
  documents: {type: list, default: []}
defaults:
  model: tiny
  channel: cache
agents:
  reader: {role: orchestrator, system: Read.}
  answerer: {model: small, temperature: 0.5}
nodes:
  read:
    agent: reader
    prompt: |
      Passages:
      {% for d in inputs.documents %}
      {{ d.title }}
      {% endfor %}
    max_new_tokens: 0
  answer:
    agent: answerer
    prompt: "{{ inputs.question }} {{ nodes.read.text }}"
    stop: [".", "!"]
  each:
    agent: answerer
    map: {over: inputs.documents, as: document}
    prompt: "{{ index }}: {{ document.title }}"
edges:
  - {from: read, to: answer, channel: {name: latent_briefing, t: 1.0}}
  - {from: read, to: each}
outputs:
  answer: "{{ nodes.answer.text }}"
task: {name: hotpotqa, answer: answer}
"""


def changed(old: str, new: str, text: str = GOOD) -> str:
    assert text.count(old) == 1, f"{old!r} must occur once"
    return text.replace(old, new)


def unmarked(text: str) -> tuple[str, str]:
    """Take the mark out of a text; also return its place as "line:column"."""
    before, mark, after = text.partition(MARK)
    assert mark, "the text has no mark"
    return before + after, f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
