"""Every mistake is told at its place: the mark « shows where the message must point."""

from __future__ import annotations

import time

import pytest

from agentflow.errors import WorkflowError
from agentflow.workflow import parse_workflow

from .samples import GOOD, changed, unmarked

DEEP = "[" * 60 + "]" * 60

# name: (part of the good workflow, what to write instead, what the message must say)
CHANGED = {
    # unknown keys, at every level
    "top key": ("outputs:", "«outptus:", "unknown key 'outptus'. Did you mean 'outputs'?"),
    "top key far off": ("description: Reads", "«zzz: Reads", "unknown key 'zzz'. Known: agents, defaults"),
    "input key": ("{type: list, default", "{type: list, «defalt", "Did you mean 'default'?"),
    "defaults key": ("  channel: cache", "  «chanel: cache", "Did you mean 'channel'?"),
    "agent key": ("system: Read.", "«sytem: Read.", "agents.reader.sytem: unknown key 'sytem'"),
    "node key": ("    stop:", "    «stp:", "nodes.answer.stp: unknown key 'stp'. Did you mean 'stop'?"),
    "node key max_tokens": ("    max_new_tokens:", "    «max_tokens:", "Did you mean 'max_new_tokens'?"),
    "misspelt required key": ("map: {over:", "map: {«ovr:", "Did you mean 'over'?"),
    "edge key": ("{from: read, to: each}", "{from: read, to: each, «chanel: text}", "edges[1].chanel"),
    "retry key": ("stop: [", "retry: {count: 1, «wiat: 2}\n    stop: [", "unknown key 'wiat'. Did you mean 'wait'?"),
    "retry without count": ("stop: [", "«retry: {wait: 2}\n    stop: [", "the key 'count' is missing"),
    "retry text": (
        "stop: [",
        "retry: «often\n    stop: [",
        "expected a mapping, got the text 'often'. Write `retry: 2`",
    ),
    "retry none": ("stop: [", "retry: {count: «0}\n    stop: [", "expected a number of at least 1, got 0"),
    "retry on nothing": ("stop: [", "retry: {count: 1, on: «[]}\n    stop: [", "expected a kind of error"),
    "retry on what": ("stop: [", "retry: {count: 1, on: [«timeot]}\n    stop: [", "Did you mean 'timeout'?"),
    "on_error word": ("stop: [", "on_error: «skp\n    stop: [", "Did you mean 'skip'?"),
    "on_error key": ("stop: [", "on_error: {«falback: x}\n    stop: [", "Did you mean 'fallback'?"),
    "on_error action": ("stop: [", "on_error: «{action: skip}\n    stop: [", "unknown key 'action'"),
    "on_error empty": ("stop: [", "on_error: «{}\n    stop: [", "expected fail, skip or a mapping"),
    "fallback number": ("stop: [", "on_error: {fallback: «3}\n    stop: [", "expected text, got the number 3"),
    "fallback template": ("stop: [", 'on_error: {fallback: "{{ «inputs.qestion }}"}\n    stop: [', "'qestion'"),
    "when empty": ("stop: [", 'when: «""\n    stop: [', "an empty text"),
    "when bool": ("stop: [", "when: «true\n    stop: [", "expected text, got true"),
    "when syntax": ("stop: [", 'when: «"inputs.question ="\n    stop: [', "the expression can't be read"),
    "when name": ("stop: [", 'when: "«inputs.qestion == 1"\n    stop: [', "unknown input 'qestion'"),
    "when order": ("stop: [", 'when: "«nodes.each.text == 1"\n    stop: [', "no edge leads from 'each' to 'answer'"),
    "when item": ("map: {over:", 'when: "«document == 1"\n    map: {over:', "unknown name 'document'"),
    # names that do not exist
    "agent": ("agent: reader", "agent: «readr", "unknown agent 'readr'. Did you mean 'reader'?"),
    "edge from": ("{from: read, to: each}", "{from: «raed, to: each}", "edges[1].from: unknown node 'raed'"),
    "edge to": ("{from: read, to: each}", "{from: read, to: «eech}", "Did you mean 'each'?"),
    "task answer": ("answer: answer}", "answer: «anser}", "task.answer: unknown node 'anser'"),
    "output node": (
        "{{ nodes.answer.text }}",
        "{{ «nodes.answr.text }}",
        "outputs.answer: unknown node 'answr'",
    ),
    # wrong types
    "text for number": (
        "max_new_tokens: 0",
        "max_new_tokens: «twelve",
        "expected a whole number, got the text 'twelve'",
    ),
    "quoted number": ("max_new_tokens: 0", 'max_new_tokens: «"12"', "Remove the quotes."),
    "float for int": (
        "max_new_tokens: 0",
        "max_new_tokens: «1.5",
        "expected a whole number, got the number 1.5",
    ),
    "bool for int": ("max_new_tokens: 0", "max_new_tokens: «true", "expected a whole number, got true"),
    "negative": ("max_new_tokens: 0", "max_new_tokens: «-1", "expected a number of at least 0, got -1"),
    "temperature": ("temperature: 0.5", "temperature: «hot", "expected a number, got the text 'hot'"),
    "infinite": ("temperature: 0.5", "temperature: «.inf", "expected a finite number, got inf"),
    "top_p": ("temperature: 0.5", "top_p: «1.5", "expected a number of at most 1, got 1.5"),
    "top_p zero": ("temperature: 0.5", "top_p: «0", "expected a number greater than 0, got 0"),
    "top_k": ("temperature: 0.5", "top_k: «0", "expected a number of at least 1, got 0"),
    "timeout": ("temperature: 0.5", "timeout: «0", "greater than 0"),
    "number for text": ("system: Read.", "system: «5", "expected text, got the number 5. Put it in quotes."),
    "list for text": (
        'prompt: "{{ index }}',
        'prompt: «[a]\n    description: "{{ index }}',
        "expected text, got a list",
    ),
    "role": ("role: orchestrator", "role: «orchestrater", "Did you mean 'orchestrator'?"),
    "empty stop": ('stop: [".", "!"]', 'stop: [".", «""]', "an empty stop text"),
    "stop number": ('stop: [".", "!"]', 'stop: [".", «3]', "nodes.answer.stop[1]: expected text"),
    "stop mapping": (
        'stop: [".", "!"]',
        "stop: «{a: b}",
        "expected a text or a list of texts, got a mapping",
    ),
    "model number": (
        "model: small",
        "model: «7",
        "expected the name of a model or a mapping, got the number 7",
    ),
    "model empty": ("model: small", 'model: «""', "expected the name of a model"),
    "input type": ("question: string", "question: «strng", "Did you mean 'string'?"),
    "input default": ("default: []", "default: «3", "the default must be a list, got the number 3"),
    "input as number": ("question: string", "question: «3", "expected a mapping, got the number 3"),
    "agent as text": ("reader: {role: orchestrator, system: Read.}", "reader: «tiny", "expected a mapping"),
    "map without over": (
        "map: {over: inputs.documents, as: document}",
        "«map: {as: document}",
        "'over' is missing",
    ),
    "over number": (
        "over: inputs.documents",
        "over: «3",
        "expected an expression or a list, got the number 3",
    ),
    "map as reserved": ("as: document", "as: «nodes", "'nodes' already means something"),
    "map as keyword": ("as: document", "as: «for", "'for' already means something"),
    "map as invalid": ("as: document", "as: «a-b", "'a-b' is not a valid name"),
    "channel list": (
        "channel: {name: latent_briefing, t: 1.0}",
        "channel: «[a]",
        "expected the name of a channel",
    ),
    "channel unnamed": (
        "channel: {name: latent_briefing, t: 1.0}",
        "«channel: {t: 1.0}",
        "'name' is missing",
    ),
    "channel name": ("{name: latent_briefing, t", "{name: «3, t", "expected text, got the number 3"),
    "default channel": (
        "  channel: cache",
        "  channel: «3",
        "defaults.channel: expected the name of a channel",
    ),
    "task number": ("task: {name: hotpotqa, answer: answer}", "task: «3", "expected the name of a task"),
    "output number": ('answer: "{{ nodes.answer.text }}"', "answer: «3", "expected text, got the number 3"),
    "output unquoted": (
        'answer: "{{ nodes.answer.text }}"',
        "answer: {«{ nodes.answer.text }}",
        "Put quotes around",
    ),
    "edge as text": ("- {from: read, to: each}", "- «read -> each", "Write `{from: a, to: b}`."),
    "edges as mapping": ("  - {from: read, to: each}", "  - {«form: read, to: each}", "Did you mean 'from'?"),
    # names that are no names
    "workflow name": ("workflow: demo", "workflow: «a demo", "not a valid name of a workflow"),
    "workflow number": ("workflow: demo", "workflow: «3", "expected text, got the number 3"),
    "node name": ("  each:", "  «ea-ch:", "'ea-ch' is not a valid name"),
    "node number": ("  each:", "  «7:", "the number 7 is no name"),
    "agent name": ("  reader:", "  «_reader:", "'_reader' is not a valid name"),
    "input name": ("  question:", "  «my question:", "'my question' is not a valid name"),
    # missing keys
    "no model": ("model: tiny", "max_new_tokens: 3", "agents.reader: the key 'model' is missing"),
    "no to": ("{from: read, to: each}", "«{from: read}", "edges[1]: the key 'to' is missing"),
    "no prompt": ('    prompt: "{{ inputs.question }} {{ nodes.read.text }}"\n', "", "'prompt' is missing"),
    # the graph
    "duplicate edge": ("- {from: read, to: each}", "- «{from: read, to: answer}", "edges[0] is the first"),
    "self edge": ("to: each}", "to: «read}", "'read' can't send to itself"),
    "cycle": ("- {from: read, to: each}", "- «{from: answer, to: read}", "read -> answer -> read"),
    "open answer": (
        "task: {name: hotpotqa, answer: answer}",
        "task: «hotpotqa",
        "ends in several nodes (answer, each)",
    ),
    # templates
    "undeclared input": ("in inputs.documents %}", "in «inputs.docs %}", "unknown input 'docs'"),
    "bare input": ('"{{ inputs.question }} ', '"{{ «question }} ', "Did you mean 'inputs.question'?"),
    "bare node": ("{{ nodes.read.text }}", "{{ «read }}", "Did you mean 'nodes.read.text'?"),
    "item outside map": (
        "{{ nodes.read.text }}",
        "{{ «index }}",
        "Only the prompt of a node with `map:` has it.",
    ),
    "unknown node": ("{{ nodes.read.text }}", "{{ «nodes.raed.text }}", "Did you mean 'read'?"),
    "no edge": ("{{ nodes.read.text }}", "{{ «nodes.each.text }}", "Add an edge from each"),
    "own result": ("{{ nodes.read.text }}", "{{ «nodes.answer.text }}", "can't use its own result"),
    "subscript": ("{{ nodes.read.text }}", "{{ nodes['«raed'].text }}", "unknown node 'raed'"),
    "unclosed tag": ("{% endfor %}", "", "{% for %} is never closed. Add {% endfor %}."),
    "syntax in block": ("      {{ d.title }}", "      «{{ d.title d }}", "expected '}}', got 'd'"),
    "filter": ('"{{ index }}:', '"{{ index|«uper }}:', "unknown filter 'uper'. Did you mean 'upper'?"),
    "test": ('"{{ index }}:', '"{{ index is «evn }}:', "unknown test 'evn'. Did you mean 'even'?"),
    "include": ('"{{ index }}:', "«\"{% include 'a' %}:", "templates can't read other files"),
    "over syntax": ("over: inputs.documents", 'over: «"inputs."', "the expression can't be read"),
    "over unknown": ("over: inputs.documents", "over: «inputs.docs", "unknown input 'docs'"),
    "over not before": ("over: inputs.documents", "over: «nodes.answer.text", "Add an edge from answer"),
    "deep template": ('"{{ index }}:', '«"{{ ' + "(" * 2000, "nested too deeply"),
    # agent files
    "absolute use": ("{model: small,", "{use: «/etc/passwd,", "leaves the project"),
    "use above": ("{model: small,", "{use: «../secrets.yaml,", "leaves the project"),
    "use inner above": ("{model: small,", "{use: «agents/../../secrets.yaml,", "leaves the project"),
    "use home": ("{model: small,", "{use: «~/secrets.yaml,", "leaves the project"),
    "use missing": ("{model: small,", "{use: «agents/nobody.yaml,", "no agent file 'agents/nobody.yaml'"),
    "use number": ("{model: small,", "{use: «3,", "expected the path of an agent file, got the number 3"),
    # YAML itself
    "duplicate key": ("  answer:\n", "  «read:\n", "the key 'read' appears twice; the first is at 13:3"),
    "duplicate top key": ("outputs:", "«nodes:", "appears twice; the first is at 12:1"),
    "tab": ("    agent: reader", "«\tagent: reader", "a tab is used for indentation. Use spaces."),
    "indentation": ("    agent: reader\n", "   agent: reader\n", "Check the indentation"),
    "colon in text": (
        "description: Reads, then",
        "description: Reads«: then",
        "put quotes around text that contains ': '",
    ),
    "unclosed quote": ("system: Read.", "system: «'Read.", "this quote is never closed"),
    "python tag": ("system: Read.", "system: «!!python/object/apply:os.system [ls]", "is not allowed"),
    "own tag": ("system: Read.", "system: «!vault x", "the tag '!vault' is not allowed"),
    "binary": ("system: Read.", "system: «!!binary aGk=", "the tag '!!binary' is not allowed"),
    "timestamp tag": ("system: Read.", "system: «!!timestamp 2020-01-01", "not allowed"),
    "merge key": ("system: Read.", "«<<: {system: x}", "merge keys (<<) are not supported"),
    "unknown alias": ("system: Read.", "system: «*nobody", "unknown alias *nobody"),
    "recursive alias": ("system: Read.", "model: &m {a: «*m}", "contains itself"),
    "second document": ("outputs:", "«---\noutputs:", "a second document starts here"),
    "unknown escape": ("system: Read.", 'system: "«\\d"', "an unknown escape"),
    "control character": ("system: Read.", "system: «\x07", "U+0007 is not allowed"),
    "at sign": (
        "system: Read.",
        "system: «@home",
        "a value can't start with '@'. Put the whole value in quotes.",
    ),
    "percent": ("system: Read.", "system: «%x", "a value can't start with '%'"),
    "long number": ("temperature: 0.5", "temperature: «" + "9" * 5000, "a number of 5000 digits is too long"),
    "null key": ("system: Read.", "«~: Read.", "a key must be text"),
    "list key": ("system: Read.", "? «[a] : b", "a key must be plain text"),
}

# whole texts
TEXTS = {
    "empty": ("«", "the file is empty"),
    "only a comment": ("«# nothing\n", "the file is empty"),
    "null": ("«null\n", "the file is empty"),
    "a list": ("«- a\n- b\n", "a workflow is a mapping, not a list"),
    "a text": ("«hello\n", "a workflow is a mapping, not the text 'hello'"),
    "unclosed bracket": ("workflow: a\nnodes: «[1, 2\n", "this bracket is never closed"),
    "unclosed brace": ("workflow: a\nnodes: {a: 1,«\n\n", "close a bracket that is still open"),
    "no nodes": ("«workflow: a\nagents: {}\n", "the key 'nodes' is missing"),
    "empty nodes": ("workflow: a\nagents: {}\nnodes: «{}\n", "a workflow needs at least one node"),
    "nodes without value": ("workflow: a\nagents: {}\nnodes:«\n", "expected a mapping, got nothing"),
    "nodes as list": (
        "workflow: a\nagents: {}\nnodes:\n  «- a\n",
        "Write `nodes: {name: {agent: ..., prompt: ...}}`.",
    ),
    "edges as text": ("workflow: a\nagents: {}\nnodes: {}\nedges: «a\n", "expected a list, got the text 'a'"),
    "key without colon": ("workflow: a\nnodes«\n", "a key without a ':' after it"),
    "too deep": ("a: " + "[" * 39 + "«" + "[" * 20 + "]" * 59, "nested more than 40 levels deep"),
    "much too deep": ("[" * 1000 + "«" + "[" * 100_000, "nested more than 40 levels deep"),
    "NUL": ("workflow: a«\0\n", "U+0000 is not allowed"),
}


def check(text: str, fragment: str) -> None:
    text, place = unmarked(text) if "«" in text else (text, "")
    begin = time.monotonic()
    with pytest.raises(WorkflowError) as caught:
        parse_workflow(text, "flow.yaml")
    assert time.monotonic() - begin < 3
    message = str(caught.value)
    assert f"flow.yaml:{place}" in message
    told = [line for line in message.splitlines() if line.startswith(f"flow.yaml:{place} – ")]
    assert any(fragment in line for line in told or message.splitlines()), message
    assert "pydantic" not in message
    assert "http" not in message
    assert "Input should" not in message


@pytest.mark.parametrize("name", CHANGED)
def test_a_mistake_is_told_at_its_place(name: str) -> None:
    old, new, fragment = CHANGED[name]
    check(changed(old, new), fragment)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_workflow_is_told_at_its_place(name: str) -> None:
    check(*TEXTS[name])


def test_most_single_mistakes_give_a_single_message() -> None:
    alone = ["top key", "agent", "edge to", "text for number", "undeclared input", "cycle", "use missing"]
    for name in alone:
        old, new, _ = CHANGED[name]
        with pytest.raises(WorkflowError) as caught:
            parse_workflow(unmarked(changed(old, new))[0])
        assert len(caught.value.problems) == 1, str(caught.value)  # type: ignore[attr-defined]


def test_an_alias_bomb_is_refused_without_unfolding_it() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    check("\n".join(lines), "too large: more than 500,000 values")


def test_mistakes_of_every_kind_are_told_together_in_the_order_of_the_text() -> None:
    text = changed("question: string", "question: strng")
    text = changed("agent: reader", "agent: readr", text)
    text = changed("max_new_tokens: 0", "max_new_tokens: x", text)
    text = changed("to: each}", "to: eech}", text)
    text = changed("    stop:", "    stp:", text)
    with pytest.raises(WorkflowError) as caught:
        parse_workflow(text)
    lines = [problem.location.line for problem in caught.value.problems]  # type: ignore[attr-defined]
    assert lines == [4, 14, 20, 24, 31]


def test_the_good_workflow_is_good() -> None:
    assert parse_workflow(GOOD).name == "demo"
