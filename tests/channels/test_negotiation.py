"""`auto` takes the best channel that fits a pair, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentflow.channels.cache import CacheChannel
from agentflow.channels.latent_briefing import LatentBriefingChannel, LatentBriefingSettings
from agentflow.channels.negotiation import auto_order, candidates, check_channel, fitting, negotiate
from agentflow.channels.text import TextChannel
from agentflow.errors import ChannelError
from agentflow.models.spec import ModelSpec

SMALL = ModelSpec(model="small", source="a/small")
LARGE = ModelSpec(model="large", source="a/large")


def windowed(folder: Path) -> ModelSpec:
    """A model of which nothing is there but a configuration with windows."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral", "sliding_window": 512}))
    return ModelSpec(model="windowed", source=str(folder))


def test_the_order_is_that_of_the_ranks() -> None:
    order = auto_order()
    known = [name for name in order if name in ("cache", "latent_briefing", "lcf", "c2c", "text")]
    assert known == ["cache", "latent_briefing", "lcf", "c2c", "text"]
    assert not {"retrieval", "summary"} & set(order)


def test_equal_weights_get_the_cache() -> None:
    choice = negotiate(candidates({}), SMALL, SMALL)
    assert isinstance(choice.channel, CacheChannel)
    assert choice.why == "the best there is, and it fits"


def test_other_weights_get_the_briefing_and_the_reason() -> None:
    choice = negotiate(candidates({"latent_briefing": {"t": 2}}), SMALL, LARGE)
    assert isinstance(choice.channel, LatentBriefingChannel)
    assert choice.channel.settings == LatentBriefingSettings(t=2)
    assert choice.why == "not cache: it needs the same weights at both ends, and 'small' is not 'large'"


def test_a_receiver_with_windows_gets_text_before_it_is_loaded(tmp_path: Path) -> None:
    receiver = windowed(tmp_path / "windowed")
    choice = negotiate(candidates({}), SMALL, receiver)
    assert choice.channel.name == "text"
    assert "not latent_briefing: 'windowed' has sliding-window layers" in choice.why
    assert fitting(SMALL, receiver) == ["text"]
    assert fitting(receiver, receiver) == ["cache", "text"]


def test_where_no_cache_may_come_the_best_that_sends_text_is_taken() -> None:
    choice = negotiate(candidates({"text": {"scope": "answer"}}), SMALL, SMALL, "there is a second one")
    assert isinstance(choice.channel, TextChannel)
    assert choice.channel.settings.scope == "answer"
    assert choice.why == "not cache or latent_briefing or lcf or c2c: there is a second one"


def test_a_channel_of_ones_own_joins_by_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.channels.text.TextChannel.rank", 5)
    assert auto_order()[0] == "text"
    assert negotiate(candidates({}), SMALL, SMALL).channel.name == "text"


def test_nothing_that_fits_is_told_with_every_reason() -> None:
    with pytest.raises(ChannelError, match=r"No channel fits here\. cache: it needs the same weights"):
        negotiate([CacheChannel()], SMALL, LARGE)


@pytest.mark.parametrize(
    ("settings", "path", "told"),
    [
        ({"retrieval": {}}, ("retrieval",), "'auto' does not try a channel 'retrieval'"),
        ({"cahe": {}}, ("cahe",), "Did you mean 'cache'?"),
        ({"cache": 3}, ("cache",), "the settings of 'cache' must be a mapping"),
        ({"cache": {"bits": 3}}, ("cache", "bits"), "setting 'bits' must be 4 or 8, not 3"),
        ({"text": {"scop": 1}}, ("text", "scop"), "unknown setting 'scop'"),
    ],
)
def test_wrong_settings_are_told_whichever_channel_is_chosen(settings, path, told) -> None:
    with pytest.raises(ChannelError) as caught:
        check_channel("auto", settings)
    (fault,) = caught.value.faults
    assert fault.path == path
    assert told in f"{fault.what}. {fault.fix}"
