"""What `auto` becomes in a workflow, beside what else meets at a node; and that every room tells of it."""

from __future__ import annotations

import pytest

from agentflow.errors import WorkflowError
from agentflow.runtime.binding import Binding, bind
from agentflow.workflow import parse_workflow

FAN = """\
workflow: fan
inputs: {items: {type: list, default: [a, b]}}
defaults: {channel: auto}
agents: {a: {model: x/one}, b: {model: x/two}}
nodes:
  first: {agent: a, prompt: hi}
  second: {agent: a, prompt: hi}
  each: {agent: a, prompt: hi, map: {over: inputs.items}}
  last: {agent: a, prompt: hi}
edges:
  - {from: first, to: last}
"""


def bound(more: str = "", text: str = FAN) -> Binding:
    return bind(parse_workflow(text + more))


def channels(binding: Binding) -> list[str]:
    return [channel.name for channel in binding.channels]


def test_an_edge_alone_gets_the_best() -> None:
    binding = bound()
    assert channels(binding) == ["cache"]
    assert binding.workflow.edges[0].channel.name == "cache"
    assert binding.negotiated == {0: "the best there is, and it fits"}
    assert [settled.to_json() for settled in binding.settled] == [
        {"from": "first", "to": "last", "channel": "cache", "why": "the best there is, and it fits"}
    ]


def test_of_several_edges_the_first_brings_the_cache() -> None:
    binding = bound("  - {from: second, to: last}\n")
    assert channels(binding) == ["cache", "text"]
    assert binding.negotiated[1].endswith("'last' stands on the cache of 'first', and joining a second one is lossy")


def test_a_cache_that_was_named_comes_first_wherever_it_is_written() -> None:
    assert channels(bound("  - {from: second, to: last, channel: {name: cache, bits: 8}}\n")) == ["text", "cache"]
    assert channels(bound("  - {from: second, to: last, channel: text}\n")) == ["cache", "text"]
    assert channels(bound("  - {from: second, to: last, channel: summary}\n")) == ["cache", "summary"]


def test_a_mapped_sender_sends_text() -> None:
    binding = bound("  - {from: each, to: last}\n", FAN.replace("  - {from: first, to: last}\n", ""))
    assert channels(binding) == ["text"]
    assert "'each' runs once for each item" in binding.negotiated[0]


def test_one_sender_may_hand_its_cache_to_many() -> None:
    assert channels(bound("  - {from: first, to: second}\n  - {from: first, to: each}\n")) == ["cache"] * 3


def test_other_models_get_the_briefing_with_its_settings() -> None:
    text = FAN.replace("last: {agent: a", "last: {agent: b").replace(
        "channel: auto", "channel: {name: auto, latent_briefing: {t: 2}}"
    )
    binding = bound(text=text)
    assert channels(binding) == ["latent_briefing"]
    assert binding.workflow.edges[0].channel.settings == {"t": 2.0}
    assert "'x/one' is not 'x/two'" in binding.negotiated[0]


def test_wrong_settings_are_told_at_their_place() -> None:
    with pytest.raises(WorkflowError) as caught:
        bound(text=FAN.replace("channel: auto", "channel: {name: auto, cache: {bits: 5}}"))
    assert "<text>:3:48 – defaults.channel.cache.bits: setting 'bits' must be 4 or 8, not 5." in str(caught.value)


def test_a_misfit_is_refused_with_what_fits() -> None:
    text = FAN.replace("last: {agent: a", "last: {agent: b").replace("to: last}", "to: last, channel: cache}")
    with pytest.raises(WorkflowError) as caught:
        bound(text=text)
    assert "it needs the same weights at both ends" in str(caught.value)
    assert "These fit here, the best first: latent_briefing, text." in str(caught.value)


def test_the_channel_of_a_whole_workflow_may_be_auto() -> None:
    workflow = parse_workflow(FAN.replace("channel: auto", "channel: text")).with_channel("auto")
    assert channels(bind(workflow)) == ["cache"]
