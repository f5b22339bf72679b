"""Latent briefing on tiny models: exact where nothing is dropped, at the right positions, honest about losses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.errors import ChannelError
from agentflow.evaluation.calibration import calibrate_heads
from agentflow.kv.matching import fit
from agentflow.kv.payload import Turn
from agentflow.kv.rope import strip, turn
from agentflow.kv.wire import read_payload, write_payload
from agentflow.models.chat import conversation, join, render
from agentflow.models.engine import Engine
from agentflow.models.heads import HeadWeights, find_weights, own_file, save_weights
from agentflow.models.requests import Request
from tests.tiny import make_engine, tiny_engine, tiny_model, words

WORDS = "the code of room seven is red. remember blue and green! who is in paris? london answers. " * 2
TURNS = (Turn("system", "be brief"), Turn("user", WORDS), Turn("assistant", "ok"))


def message(engine, *, cache=True):
    ids = tuple(render(engine.tokenizer, TURNS, reply=False))
    return Message("read", TURNS, "ok", ids if cache else (), engine.prefill(ids) if cache else None, engine)


def over(engine, *, sender=None, **settings):
    """Payload, context and answer of one message over the channel with these settings."""
    channel = make_channel("latent_briefing", {"least": 1, "sinks": 4, **settings})
    task = Task("what is the code of room seven?", "", engine)
    payload = channel.send(sender or message(engine), task)
    context = channel.receive(payload, engine)
    ids = render(engine.tokenizer, conversation("", task.prompt, context.turns), reply=True)
    joined = join(ids, context.cache, context.token_ids)
    return payload, context, engine.generate([Request(joined.suffix, joined.prefix, max_new_tokens=10)])[0]


def by_cache(engine):
    channel, task = make_channel("cache"), Task("what is the code of room seven?", "", engine)
    context = channel.receive(channel.send(message(engine), task), engine)
    ids = render(engine.tokenizer, conversation("", task.prompt, context.turns), reply=True)
    joined = join(ids, context.cache, context.token_ids)
    return engine.generate([Request(joined.suffix, joined.prefix, max_new_tokens=10)])[0]


@pytest.mark.parametrize("family", ["llama", "qwen2-yarn", "qwen3", "olmo2", "gpt-neox", "qwen3-moe"])
@pytest.mark.parametrize("refit", ["none", "beta", "values", "both"])
def test_keeping_everything_is_the_cache_channel(family, refit):
    engine = tiny_engine(family)
    payload, context, answer = over(engine, threshold="ratio", ratio=1.0, refit=refit)
    assert answer.token_ids == by_cache(engine).token_ids
    assert payload.stats["kept_share"] == 1.0
    assert payload.stats["output_error"] < 1e-3
    assert context.cache.next_position == payload.header.tokens


@pytest.mark.parametrize("selection", ["shared", "per_head"])
@pytest.mark.parametrize("score", ["task", "own", "random"])
@pytest.mark.parametrize("smooth", [1, 5, "sentence"])
@pytest.mark.parametrize("gaps", ["close", "keep"])
def test_a_share_is_kept_and_new_tokens_stand_behind_it_or_behind_the_original_length(selection, score, smooth, gaps):
    engine = tiny_engine()
    payload, context, answer = over(
        engine, threshold="ratio", ratio=0.4, selection=selection, score=score, smooth=smooth, sinks=3, gaps=gaps
    )
    full = payload.header.tokens
    assert context.cache.next_rotary == (len(context.cache) if gaps == "close" else full)
    assert len(context.cache) == payload.header.kept == round(0.4 * full)
    assert context.cache.next_position == full
    assert answer.reused == len(context.cache)
    assert f"{len(context.cache)} of {full} positions kept" in payload.header.losses
    assert all(bool(torch.isfinite(v).all()) for v in context.cache.values)


@pytest.mark.parametrize("family", ["llama", "qwen2-yarn", "qwen3", "olmo2", "gpt-neox", "qwen3-moe"])
def test_closed_gaps_are_the_same_keys_turned_to_stand_behind_one_another(family):
    engine = tiny_engine(family)
    how = {"threshold": "ratio", "ratio": 0.4, "refit": "none"}
    kept, closed = (over(engine, gaps=gaps, **how)[1].cache for gaps in ("keep", "close"))
    assert torch.equal(kept.positions, closed.positions)
    assert kept.next_position == closed.next_position
    assert closed.rotary.tolist() == list(range(len(kept)))
    ropes = engine.loaded.ropes
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(strip(kept, ropes), strip(closed, ropes), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(kept.values, closed.values, strict=True))


@pytest.mark.parametrize("refit", ["beta", "values", "both"])
def test_a_closed_briefing_is_fitted_where_it_will_be_read(refit):
    """What the fit says of its error is what a receiver behind the closed cache sees."""
    engine = tiny_engine()
    task = Task("what is the code of room seven?", "", engine)
    sender = message(engine)
    payload, context, _ = over(engine, sender=sender, threshold="ratio", ratio=0.4, refit=refit)
    ids = render(engine.tokenizer, conversation("", task.prompt, TURNS), reply=True)
    full = join(ids, sender.cache, sender.token_ids)
    queries = engine.queries(full.prefix, full.suffix)
    told = fit(
        queries,
        full.prefix.keys,
        full.prefix.values,
        context.cache.positions,
        engine.attention_scale,
        moved=(turn(queries, len(context.cache) - full.prefix.next_position, engine.loaded.ropes), context.cache.keys),
        bias=refit in ("beta", "both"),
        refit_values=refit in ("values", "both"),
        ridge=0.03,
    )
    assert payload.stats["output_error"] == pytest.approx(told.output_error, rel=1e-3)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(told.values, context.cache.values, strict=True))


def test_the_threshold_decides_how_much_is_kept():
    engine = tiny_engine()
    kept = [over(engine, t=t)[0].header.kept for t in (-1.0, 0.0, 1.0, 4.0)]
    assert kept == sorted(kept, reverse=True)
    assert over(engine, threshold="top_k", top_k=20)[0].header.kept == 20
    assert over(engine, t="auto")[0].header.kept > 0


def test_more_reference_queries_are_taken_when_asked():
    engine = tiny_engine()
    answers = [over(engine, threshold="ratio", ratio=0.3, queries=q)[0] for q in ("task", "repeat", "both")]
    values = [p.body.cache.values[0] for p in answers]
    assert not torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_a_sender_of_other_weights_is_encoded_by_the_receiver_and_only_its_new_end_the_second_time():
    receiver = Engine(tiny_engine().loaded)
    sender = make_engine(tiny_model(seed=5), "other")
    first = over(receiver, sender=message(sender))[0]
    again = over(receiver, sender=message(sender))[0]
    own = over(receiver, sender=message(receiver))[0]
    assert first.stats["trajectory_tokens"] == first.header.tokens
    assert again.stats["trajectory_tokens"] == 0
    assert torch.equal(first.body.cache.positions, own.body.cache.positions)
    assert first.header.fingerprint == receiver.fingerprint


def test_what_stands_before_a_senders_conversation_is_not_looked_for_where_it_is_encoded_anew():
    receiver, sender = Engine(tiny_engine().loaded), make_engine(tiny_model(seed=5), "other")
    plain = message(sender)
    before = tuple(words(7))
    joined = replace(
        plain, cache=sender.prefill((*before, *plain.token_ids)), token_ids=(*before, *plain.token_ids), head=7,
        losses=("2 caches joined, keys re-rotated",),
    )  # fmt: skip
    expected = over(receiver, sender=plain, threshold="ratio", ratio=0.5)
    found = over(receiver, sender=joined, threshold="ratio", ratio=0.5)
    assert torch.equal(found[0].body.cache.positions, expected[0].body.cache.positions)
    assert found[0].header.losses == expected[0].header.losses
    assert found[1].head == 0
    assert found[2].token_ids == expected[2].token_ids


def test_a_remote_sender_needs_words_only():
    engine = Engine(tiny_engine().loaded)
    remote = Message("remote", TURNS, "ok")
    assert over(engine, sender=remote)[2].token_ids == over(engine, sender=message(engine))[2].token_ids


@pytest.mark.parametrize(("on_loss", "kind"), [("warn", "CacheBody"), ("text", "TextBody"), ("full", "CacheBody")])
def test_a_loss_beyond_the_bound_is_warned_of_or_avoided(on_loss, kind):
    engine = tiny_engine()
    payload, _, answer = over(engine, threshold="ratio", ratio=0.1, refit="none", max_loss=1e-6, on_loss=on_loss)
    assert payload.stats["bound_passed"] == 1.0
    (warning,) = payload.warnings
    assert "is above max_loss 1e-06; sent " in warning
    assert warning.endswith(f"(on_loss: {on_loss})")
    assert type(payload.body).__name__ == kind
    if on_loss != "warn":
        assert answer.token_ids == by_cache(engine).token_ids
        assert "loss bound" in payload.header.losses[-1]
    kept = over(engine, threshold="ratio", ratio=0.5, max_loss=1e6)[0]
    assert (kept.stats["bound_passed"], kept.warnings) == (0.0, ())


def test_a_briefing_travels_as_a_file(tmp_path):
    engine = tiny_engine()
    payload, context, _ = over(engine, threshold="ratio", ratio=0.3, refit="both")
    write_payload(payload, tmp_path / "p.safetensors")
    read = make_channel("latent_briefing").receive(read_payload(tmp_path / "p.safetensors"), engine)
    pairs = zip((*context.cache.values, *context.cache.bias), (*read.cache.values, *read.cache.bias), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_models_with_windows_are_refused_by_name():
    with pytest.raises(ChannelError, match="sliding-window layers"):
        over(tiny_engine("mistral-sliding"))


def test_head_weights_choose_who_votes_and_wrong_files_are_clear_errors(tmp_path):
    engine = tiny_engine()
    weights = torch.zeros(4, 4)
    weights[3, 1] = 1.0
    file = tmp_path / "w.json"
    save_weights(file, HeadWeights(weights))
    plain = {"threshold": "ratio", "ratio": 0.3, "prior": "none", "first_layer": 0.0}
    chosen = over(engine, head_weights=str(file), **plain)[0]
    assert not torch.equal(chosen.body.cache.positions, over(engine, **plain)[0].body.cache.positions)
    save_weights(file, HeadWeights(torch.ones(2, 2)))
    for name, what in (("w.json", "don't fit"), ("gone.json", "can't be read")):
        with pytest.raises(ChannelError, match=what):
            over(engine, head_weights=str(tmp_path / name))
    for text in (
        "[]",
        '{"weights": 3}',
        '{"weights": [[-1.0]]}',
        '{"weights": [[NaN]]}',
        "{",
        '{"weights": [[1], [1, 2]]}',
    ):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ChannelError, match="no file of head weights"):
            over(engine, head_weights=str(tmp_path / "x.json"))


def test_auto_takes_the_weights_that_were_calibrated_for_this_model(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    engine = Engine(tiny_engine().loaded)
    plain = {"threshold": "ratio", "ratio": 0.3}
    before = over(engine, **plain)[0]
    found = calibrate_heads(engine, items=3, facts=4, heads=2).weights
    save_weights(own_file(engine.fingerprint), found)
    auto, named = over(engine, **plain)[0], over(engine, head_weights=str(own_file(engine.fingerprint)), **plain)[0]
    uniform = over(engine, head_weights="uniform", **plain)[0]
    assert torch.equal(auto.body.cache.positions, named.body.cache.positions)
    assert torch.equal(before.body.cache.positions, uniform.body.cache.positions)
    assert not torch.equal(auto.body.cache.positions, uniform.body.cache.positions)
    other = make_engine(tiny_model(seed=5), "other")
    assert find_weights(other.loaded.spec, other.fingerprint) is None


def test_answers_are_void_when_the_heads_that_vote_were_calibrated_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    engine, path = tiny_engine(), tmp_path / "mine.json"
    spec = engine.loaded.spec
    ways = {"auto": "auto", "uniform": "uniform", "file": str(path)}
    channels = {name: make_channel("latent_briefing", {"head_weights": way}) for name, way in ways.items()}

    def marks():
        return {name: channel.mark(spec, spec) for name, channel in channels.items()}

    save_weights(path, HeadWeights(torch.ones(4, 4)))
    first = marks()
    save_weights(own_file(engine.fingerprint).with_name("another.json"), HeadWeights(torch.ones(4, 4), "another model"))
    assert marks() == first
    save_weights(own_file(engine.fingerprint), HeadWeights(torch.ones(4, 4), spec.source))
    save_weights(path, HeadWeights(torch.eye(4)))
    assert {name for name, mark in marks().items() if mark != first[name]} == {"auto", "file"}


def test_short_messages_are_kept_whole_by_default():
    engine = tiny_engine()
    short = (Turn("user", "red"),)
    ids = tuple(render(engine.tokenizer, short, reply=False))
    sender = Message("read", short, "", ids, engine.prefill(ids), engine)
    payload = make_channel("latent_briefing").send(sender, Task("what?", "", engine))
    assert payload.header.kept == payload.header.tokens < 64


@pytest.mark.parametrize("gaps", ["close", "keep"])
def test_a_briefing_that_was_answered_can_be_briefed_again(gaps):
    """What a worker was sent and said is compacted for the next one: gaps and biases are taken along."""
    engine = Engine(tiny_engine().loaded)
    context = over(engine, threshold="ratio", ratio=0.5, gaps=gaps, refit="both")[1]
    ids = render(engine.tokenizer, conversation("", "what is the code of room seven?", context.turns), reply=True)
    joined = join(ids, context.cache, context.token_ids)
    said = engine.generate([Request(joined.suffix, joined.prefix, max_new_tokens=6, keep_cache=True)])[0]
    turns = (*conversation("", "what is the code of room seven?", context.turns), Turn("assistant", said.text))
    token_ids = (*ids, *said.token_ids)[: said.cache.next_position]
    sender = Message("answer", turns, said.text, token_ids, said.cache, engine)
    assert len(said.cache) < said.cache.next_position
    assert said.cache.bias is not None
    for settings in ({"threshold": "ratio", "ratio": 1.0}, {"threshold": "ratio", "ratio": 0.5, "queries": "both"}):
        payload, again, _ = over(engine, sender=sender, **settings)
        assert again.cache.next_position == payload.header.tokens
        assert set(again.cache.positions.tolist()) <= set(said.cache.positions.tolist())
        assert again.cache.next_rotary == len(again.cache) or payload.header.kept == len(said.cache)
    reopened = over(engine, sender=sender, threshold="ratio", ratio=0.5, gaps="keep")[1].cache
    at = [said.cache.positions.tolist().index(p) for p in reopened.positions.tolist()]
    assert reopened.rotary_positions.tolist() == said.cache.rotary_positions[at].tolist()
    whole = over(engine, sender=sender, threshold="ratio", ratio=1.0, refit="none")[1].cache
    assert torch.equal(whole.bias[0], said.cache.before(whole.next_position).bias[0])
    assert over(engine, sender=sender, threshold="ratio", ratio=0.5, score="own")[0].header.kept > 0
