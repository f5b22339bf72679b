"""Closed forms on tiny models: a model mapped to itself is itself; a fit that is stopped goes on."""

from __future__ import annotations

import pytest
import torch
from accelerate.state import AcceleratorState

from agentflow.adapters.base import make_adapter
from agentflow.adapters.examples import load_samples, make_examples
from agentflow.adapters.fitting import FitLog, distinct, fit
from agentflow.adapters.passes import Pair
from agentflow.adapters.recipe import DataRecipe, Recipe
from agentflow.adapters.training import CHECKPOINT, FIT, train
from agentflow.errors import AdapterError
from tests.tiny import tiny_engine

DATA = {"task": "private_facts", "settings": {"facts": 3, "questions": 1}, "train": 60, "held_out": 2}


@pytest.fixture(autouse=True)
def fresh_accelerate():
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def samples():
    return load_samples(DataRecipe(**DATA), 0)


def mapped(pair, **arguments):
    marks = (e.fingerprint.geometry for e in (pair.sender, pair.receiver))
    torch.manual_seed(0)
    return make_adapter("lcf_mapped", *marks, arguments)


def test_a_model_mapped_to_itself_is_itself(samples):
    pair = Pair(tiny_engine("llama"), tiny_engine("llama"))
    made = mapped(pair, neighbours=0)
    fit(made, pair, samples[0], 1e-6)
    (example,) = make_examples(samples[1][:1], pair.sender, pair.receiver, "front")
    (theirs,), (own,) = pair.read([example])
    with torch.no_grad():
        (found,) = made.eval()([theirs], [own], pair.ropes, [example.partners])
    assert len(found) == len(theirs)
    for a, b in zip(found.keys + found.values, theirs.keys + theirs.values, strict=True):
        assert float((a[:, 1:] - b[:, 1:]).abs().max()) < 0.05 * float(b.abs().max())


def test_texts_are_read_once_however_many_questions_are_asked(samples):
    twice = [*samples[0][:3], *samples[0][:3]]
    assert distinct(twice, 10) == samples[0][:3]
    assert distinct(twice, 2) == samples[0][:2]


@pytest.mark.parametrize("name", ["lcf_mapped", "lcf_delta"])
def test_a_fit_that_is_stopped_goes_on_to_the_same_weights(samples, tmp_path, name):
    pair = Pair(tiny_engine("llama"), tiny_engine("qwen2"))
    marks = [e.fingerprint.geometry for e in (pair.sender, pair.receiver)]
    arguments = {"d_z": 4} if name == "lcf_delta" else {}

    def make():
        torch.manual_seed(0)
        return make_adapter(name, *marks, arguments)

    whole, stopped, again = make(), make(), make()
    fit(whole, pair, samples[0], 0.01)
    log = FitLog(tmp_path / FIT, "m")

    def stop(share):
        if share > 0.95:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(stopped, pair, samples[0], 0.01, log, stop)
    more = []
    fit(again, pair, samples[0], 0.01, log, more.append)
    assert len(more) == 10  # the 50 texts before were kept
    for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)
    assert FitLog(tmp_path / FIT, "another").load(make()) is None
    log.path.write_bytes(log.path.read_bytes()[:-5])
    assert log.load(make()) is None


def recipe(**changes):
    given = {"adapter": "lcf_mapped", "sender": "a", "receiver": "b", "data": DATA, "batch": 2, "steps": 0}
    return Recipe.model_validate({**given, "closed_form": {"texts": 40}, **changes})


@pytest.mark.parametrize("name", ["lcf_mapped", "lcf_slots", "lcf_delta"])
def test_training_starts_from_the_closed_form_and_goes_on_from_there(tmp_path, name):
    heard = []
    arguments = {"lcf_mapped": {}, "lcf_slots": {"slots": 4}, "lcf_delta": {"d_z": 4}}[name]
    ends = tiny_engine("llama"), tiny_engine("qwen2")
    bundle = train(
        recipe(adapter=name, arguments=arguments, steps=3, losses={"kl": 0.5}),
        *ends,
        tmp_path / "work",
        tmp_path / "out",
        waiting=lambda what, share: heard.append((what, share)),
    )
    assert heard[-1] == ("reading the texts in both models", 1.0)
    assert not (tmp_path / "work" / FIT).exists()
    assert bundle.card.recipe["steps_done"] == 3
    gates = [t for n, t in bundle.load().state_dict().items() if n.endswith("gates.gate")]
    assert all(bool((t > 2).all()) for t in gates)


def test_the_closed_form_alone_is_a_bundle_and_is_not_found_twice(tmp_path):
    ends = tiny_engine("llama"), tiny_engine("qwen2")
    first = train(recipe(), *ends, tmp_path / "work", tmp_path / "out")
    assert (tmp_path / "work" / CHECKPOINT).exists()
    heard = []
    again = train(recipe(), *ends, tmp_path / "work", tmp_path / "out2", waiting=lambda *told: heard.append(told))
    assert heard == []
    assert again.card.digest == first.card.digest
    assert {"message", "mismatched", "zero", "receiver alone", "sender alone"} <= first.card.metrics.keys()


def test_an_adapter_without_a_closed_form_and_a_recipe_of_nothing_are_refused(tmp_path):
    ends = tiny_engine("llama"), tiny_engine("qwen2")
    with pytest.raises(AdapterError, match="Nothing of 'lcf_aligned' can be found in closed form"):
        train(recipe(adapter="lcf_aligned"), *ends, tmp_path / "work", tmp_path / "out")
    with pytest.raises(AdapterError, match="Nothing would be trained"):
        train(recipe(closed_form=None), *ends, tmp_path / "work2", tmp_path / "out")
