"""Wrong input: one message that says what, where and how to fix it; exit code 2; nothing left behind."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from agentflow.kv.cache import KVCache
from agentflow.kv.payload import CacheBody, Header, Payload, TextBody, Turn
from agentflow.kv.wire import write_payload
from tests.cli.conftest import FACTS, QUESTION, files_below, save_tiny
from tests.tiny import tiny_engine, words

LOADING = re.compile(r"^loading other …\n")  # only a loaded model knows whether a payload fits it
CYCLE = """\
workflow: cycle
agents: {a: {model: tiny}}
nodes:
  one: {agent: a, prompt: hi}
  two: {agent: a, prompt: hi}
  three: {agent: a, prompt: hi}
edges:
  - {from: one, to: two}
  - {from: two, to: three}
  - {from: three, to: one}
"""
FILES = {
    "cycle.yaml": CYCLE,
    "open.yaml": "workflow: open\nagents: {a: {model: tiny}\nnodes: {}\n",
    "key.yaml": QUESTION.replace("agent: a", "agnt: a"),
    "agent.yaml": QUESTION.replace("agent: a", "agent: b"),
    "model.yaml": QUESTION.replace("model: tiny", "model: smollm2-135x"),
    "channel.yaml": FACTS.replace("channel: cache", "channel: cahe"),
    "setting.yaml": FACTS.replace("channel: cache", "channel: {name: text, scop: answer}"),
    "task.yaml": FACTS.replace("name: private_facts", "name: privat_facts"),
    "markup.yaml": QUESTION.replace("agent: a", "agent: '[red]b[/red]'"),
    "empty.yaml": "",
    "scalar.json": "[1, 2]",
    "shape.json": '[{"question": "who?"}]',
    "list.json": "[1]",
    "broken.json": '{"question": ',
    "number.json": '{"question": 3}',
    "nothing": "",
}

# Arguments, and words that the message must hold.
CASES = {
    "no verb of that name": ("rnu", "verb 'rnu'", "Did you mean 'run'?"),
    "no workflow named": ("run", "WORKFLOW", "agentflow run --help"),
    "no such option": ("run question.yaml --chanel x", "--chanel", "--channel"),
    "no such workflow": ("validate hotpotq", "'hotpotq'", "Did you mean 'hotpotqa'?"),
    "no such file": ("run nowhere/flow.yaml", "nowhere/flow.yaml"),
    "a folder as workflow": ("validate folder", "folder"),
    "an empty workflow": ("validate empty.yaml", "empty.yaml"),
    "YAML that does not end": ("validate open.yaml", "open.yaml:2:9", "never closed"),
    "unknown key": ("validate key.yaml", "key.yaml:5:9", "nodes.one.agnt", "Did you mean 'agent'?"),
    "unknown agent": ("validate agent.yaml", "agent.yaml:5:16", "'b'", "Known: a"),
    "markup in a name": ("validate markup.yaml", "'[red]b[/red]'"),
    "unknown model": ("validate model.yaml", "model.yaml:3:21", "Did you mean 'smollm2-135m'?"),
    "unknown channel in a file": ("run channel.yaml", "channel.yaml:9:", "'cahe'", "Did you mean 'cache'?"),
    "unknown setting": ("validate setting.yaml", "setting.yaml:9:", "'scop'", "Did you mean 'scope'?"),
    "unknown task in a file": ("validate task.yaml", "task.yaml:2:", "Did you mean 'private_facts'?"),
    "a cycle": ("validate cycle.yaml", "one -> two -> three -> one", "cycle.yaml:10:5"),
    "unknown channel in run": ("run facts.yaml --channel cahe", "'cahe'", "Did you mean 'cache'?"),
    "a channel's setting in run": ('run facts.yaml --channel {"name":"cache","bits":5}', "bits", "4 or 8"),
    "a channel's setting in validate": ('validate facts.yaml --channel {"name":"cache","bist":4}', "bist", "bits"),
    "a list for a channel": ("run facts.yaml --channel [text]", "is no channel", "Write NAME"),
    "more items than are made": ("run private_facts -n 99999999999", "100,000", "Take fewer"),
    "more debates than are made": ("run debate -n 99999999999", "100,000", "Take fewer"),
    "unknown channel in compare": ("compare facts.yaml --channels text,cahe", "'cahe'", "Did you mean 'cache'?"),
    "unknown channel in validate": ("validate facts.yaml --channel cahe", "'cahe'", "Did you mean 'cache'?"),
    "unknown channel in channels": ("channels cahe", "'cahe'", "Did you mean 'cache'?"),
    "no channel": ("compare facts.yaml --channels ,", "--channels", "text,cache"),
    "a channel twice": ("compare facts.yaml --channels text,text", "--channels", "twice"),
    "a channel for no message": ("run question.yaml --input question=a --channel text", "--channel", "no messages"),
    "channels for no message": ("compare question.yaml --task private_facts", "--channels", "no messages"),
    "unknown task": ("run facts.yaml --task privat_facts", "'privat_facts'", "Did you mean 'private_facts'?"),
    "no task to compare on": ("compare facts_.yaml", "no workflow"),
    "a task that gives other inputs": ("run question.yaml --task private_facts", "'question'", "facts, questions"),
    "unknown model in models": ("models show smollm2-135x", "Did you mean 'smollm2-135m'?"),
    "no model to fetch": ("models show --fetch", "NAME"),
    "limit 0": ("run facts.yaml --limit 0", "--limit", "at least 1", "'0'"),
    "limit in words": ("compare facts.yaml -n ten", "--limit", "whole number", "'ten'"),
    "batch 0": ("run facts.yaml --batch 0", "--batch", "at least 1"),
    "no data file named": ("run hotpotqa", "hotpotqa", "--data"),
    "needless data file": ("run facts.yaml --data shape.json", "shape.json", "--data"),
    "no such data file": ("run hotpotqa --data gone.json", "gone.json", "no such file"),
    "a folder as data": ("run hotpotqa --data folder", "folder", "not a data file"),
    "an empty data file": ("run hotpotqa --data nothing", "nothing", "empty"),
    "a broken gz": ("run hotpotqa --data broken.json.gz", "broken.json.gz", "gzip", "damaged"),
    "a gz cut short": ("run hotpotqa --data short.json.gz", "short.json.gz", "cut short"),
    "data of another shape": ("run hotpotqa --data shape.json", "shape.json, record 1", "_id"),
    "data that holds no objects": ("run hotpotqa --data scalar.json", "scalar.json, record 1", "object"),
    "runs below a file": ("run facts.yaml -n 1 --runs nothing/runs", "--runs", "nothing is not a folder"),
    "runs in a file": ("run facts.yaml -n 1 --runs nothing", "--runs", "nothing is not a folder"),
    "a comparison in a file": ("compare facts.yaml -n 1 --out nothing", "--out", "nothing is not a folder"),
    "an unknown control": ("compare facts.yaml --controls zeros", "'zeros'", "Did you mean 'zero'?"),
    "a channel's setting misspelt": ("compare facts.yaml --channels {name:text,scop:answer}", "scop"),
    "no channel but a list": ("compare facts.yaml --channels [text]", "is no channel", "Write NAME"),
    "a task's setting misspelt": ("compare facts.yaml --set lvel=easy", "'lvel'", "did you mean 'level'"),
    "a task's setting without =": ("compare facts.yaml --set level", "--set", "KEY=VALUE"),
    "published figures of another form": ("compare facts.yaml --published facts.yaml", "facts.yaml", "not JSON"),
    "an input missing": ("run question.yaml", "'question' is missing", "--input NAME=VALUE"),
    "an input without =": ("run question.yaml --input question", "--input", "NAME=VALUE"),
    "an input without a name": ("run question.yaml --input =a", "--input", "NAME=VALUE"),
    "an unknown input": ("run question.yaml --input qestion=a", "'qestion'", "Did you mean 'question'?"),
    "an input that is no JSON": ("run facts.yaml --input facts=a", "'facts' is a list", "not JSON", "--input 'facts="),
    "no such inputs file": ("run question.yaml --inputs gone.json", "gone.json", "No such file"),
    "a folder as inputs": ("run question.yaml --inputs folder", "folder", "Is a directory"),
    "inputs that are no JSON": ("run question.yaml --inputs broken.json", "broken.json:1:14", "not JSON"),
    "inputs that are no mapping": ("run question.yaml --inputs list.json", "list.json", "{name: value}"),
    "inputs of another type": ("run question.yaml --inputs number.json", "'question' must be text", "number 3"),
    "inputs nested too deep": ("run question.yaml --inputs deep.json", "deep.json", "too deeply"),
    "inputs and data": ("run question.yaml --inputs number.json --data shape.json", "--data", "either"),
    "inputs and a limit": ("run question.yaml --input question=a -n 2", "--limit", "either"),
    "inputs and a task": ("run question.yaml --input question=a --task debate", "--task", "either"),
    "data without a task": ("run question.yaml --data shape.json", "--data", "names no task"),
    "characters that are no text": ("run question.yaml --input question=\udcff", "Unicode", "UTF-8"),
    "no such key file": ("run facts.yaml --keep-payloads --key-file gone", "gone", "No such file"),
    "an empty key file": ("run facts.yaml --keep-payloads --key-file nothing", "nothing", "empty"),
    "a key for nothing": ("run facts.yaml --key-file list.json", "--key-file", "--keep-payloads"),
    "no run of that name": ("runs show gone", "no run 'gone'"),
    "no run at all": ("runs show last", "no run yet", "--runs"),
    "a run to resume that is not there": ("run question.yaml --resume gone", "no run 'gone'"),
    "a forced node in a new run": ("run facts.yaml --force read", "--force", "--resume"),
    "inputs for a run that has its own": (
        "run question.yaml --resume x --input question=a",
        "--input",
        "keeps its own",
    ),
    "a seed for a run that has its own": ("run question.yaml --resume x --seed 0", "--seed", "keeps its own"),
    "a node to run until": ("run facts.yaml --until raed", "--until", "Did you mean 'read'?"),
    "no such payload": ("payload inspect gone.safetensors", "gone.safetensors", "no such"),
    "a folder as payload": ("payload inspect folder", "folder", "can't be read"),
    "an empty payload": ("payload inspect nothing", "nothing", "cut short"),
    "a truncated payload": ("payload inspect short.safetensors", "short.safetensors", "cut short"),
    "a changed payload": ("payload inspect changed.safetensors", "changed.safetensors", "digest"),
    "something else": ("payload inspect shape.json", "shape.json", "no safetensors file"),
    "an unsigned payload": (
        "payload inspect whole.safetensors --key-file list.json",
        "whole.safetensors",
        "not signed",
    ),
    "a payload of another model": (
        "payload inspect whole.safetensors --for other",
        "whole.safetensors",
        "'tiny-llama-0'",
        "different weights",
    ),
    "a payload for an unknown model": ("payload inspect whole.safetensors --for nope", "Unknown model 'nope'"),
    "a folder without a model": ("models show folder --fetch", "folder", "no config.json"),
}


def write_payloads(place):
    engine = tiny_engine()
    ids = tuple(words(12))
    cache: KVCache = engine.prefill(ids)
    header = Header("cache", "read", engine.fingerprint, len(ids), len(ids))
    write_payload(Payload(header, CacheBody(cache, ids, (Turn("user", "hi"),))), place / "whole.safetensors")
    raw = bytearray((place / "whole.safetensors").read_bytes())
    (place / "short.safetensors").write_bytes(raw[: len(raw) // 2])
    raw[-1] ^= 1
    (place / "changed.safetensors").write_bytes(raw)


@pytest.fixture
def wrong_place(place):
    for name, text in FILES.items():
        (place / name).write_text(text)
    (place / "deep.json").write_text("[" * 100_000)
    (place / "folder").mkdir()
    packed = gzip.compress(json.dumps([{"question": "who?"}] * 50).encode())
    (place / "short.json.gz").write_bytes(packed[: len(packed) // 2])
    (place / "broken.json.gz").write_bytes(packed[:2] + b"\xff" * 40)
    write_payloads(place)
    save_tiny(place / "other", seed=1)
    return place


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_one_clear_message_and_leaves_nothing_behind(case, wrong_place, cli):
    line, *told = CASES[case]
    before = files_below(wrong_place)
    ended = cli(*line.split(" "))
    assert ended.code == 2, ended.err
    assert LOADING.sub("", ended.err).startswith("error: ")
    assert ended.err.count("error: ") == 1
    assert "Traceback" not in ended.err
    assert ended.out == ""
    for words_of_it in told:
        assert words_of_it in ended.err
    assert files_below(wrong_place) == before


def test_text_payloads_fit_every_model(place, cli):
    write_payload(Payload(Header("text", "read"), TextBody((Turn("user", "a secret"),))), place / "text.safetensors")
    ended = cli("payload", "inspect", "text.safetensors", "--for", "tiny")
    assert ended.code == 0
    assert "fits" in ended.out
    assert "a secret" not in ended.out


def test_validate_checks_every_file_and_tells_machines_where(wrong_place, cli):
    ended = cli("validate", "open.yaml", "question.yaml", "cycle.yaml", "gone", "--json")
    assert ended.code == 2
    assert [one["valid"] for one in ended.json] == [False, True, False, False]
    assert ended.json[2]["problems"][0]["where"] == "cycle.yaml:10:5"
    assert ended.err == ""


def test_a_message_shows_control_characters_instead_of_obeying_them(cli):
    ended = cli("channels", "\x1b[2Jcache")
    assert ended.code == 2
    assert "\x1b" not in ended.err
    assert "\\x1b[2J" in ended.err
