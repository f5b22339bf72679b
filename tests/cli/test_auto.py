"""`channel: auto` on the command line: what it has become is said by validate, graph, run and compare."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import FACTS

TOLD = "read -> answer: auto is cache (the best there is, and it fits)"


def test_validate_and_graph_say_what_auto_is_and_why(place, cli) -> None:
    (place / "auto.yaml").write_text(FACTS.replace("channel: cache", "channel: auto"))
    told = cli("validate", "auto.yaml")
    assert told.code == 0
    assert TOLD in told.out
    assert cli("validate", "auto.yaml", "--json").json[0]["negotiated"] == [
        {"from": "read", "to": "answer", "channel": "cache", "why": "the best there is, and it fits"}
    ]
    tree = cli("graph", "auto.yaml").out
    assert "cache → answer" in tree
    assert TOLD in tree
    assert f"%% {TOLD}" in cli("graph", "auto.yaml", "--format", "mermaid").out
    assert TOLD in cli("validate", "facts.yaml", "--channel", "auto").out


def test_a_run_keeps_what_auto_was_and_resumes(place, cli) -> None:
    ended = cli("run", "facts.yaml", "-n", "1", "--channel", "auto", "--json")
    assert ended.code == 0, ended.err
    kept = json.loads((Path(ended.json["run"]) / "run.json").read_text())
    assert kept["channel"] == "auto"
    assert kept["edges"] == [["read", "answer", "cache"]]
    assert kept["negotiated"][0]["why"] == "the best there is, and it fits"
    assert TOLD in cli("runs", "show", "last").out
    assert cli("runs", "resume", "last").code == 0


def test_auto_is_compared_beside_the_channels_it_might_be(place, cli) -> None:
    ended = cli(
        "compare", "facts.yaml", "-n", "2", "--channels", "auto,text", "--controls", "mismatched,zero,self", "--json"
    )
    assert ended.code == 0, ended.err
    arms = [arm["name"] for arm in ended.json["comparison"]["arms"]]
    assert arms == ["auto", "text", "mismatched(auto)", "mismatched(text)", "zero(auto)"]


def test_wrong_settings_of_auto_are_told(place, cli) -> None:
    ended = cli("compare", "facts.yaml", "--channels", "{name: auto, cahe: {bits: 4}}")
    assert ended.code == 2
    assert "Did you mean 'cache'?" in ended.err or "did you mean 'cache'?" in ended.err
