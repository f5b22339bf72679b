"""Layers that belong together are found, whatever was left out between them."""

from __future__ import annotations

import pytest
import torch
from accelerate.state import AcceleratorState

from agentflow.adapters.bundle import open_bundle
from agentflow.adapters.examples import load_samples
from agentflow.adapters.matching import closest_layers, positions, with_layers
from agentflow.adapters.passes import Pair
from agentflow.adapters.recipe import DataRecipe, Recipe
from agentflow.adapters.training import train
from agentflow.errors import AdapterError
from agentflow.models.alignment import align_layers
from tests.tiny import make_engine, tiny_model

DATA = {"task": "private_facts", "settings": {"facts": 3, "questions": 1}, "train": 30, "held_out": 2}


@pytest.fixture(autouse=True)
def fresh_accelerate():
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def pair():
    """A model of five layers, and its first three."""
    whole, cut = (tiny_model("llama", num_hidden_layers=5, initializer_range=0.3) for _ in range(2))
    cut.model.layers, cut.config.num_hidden_layers = cut.model.layers[:3], 3
    return Pair(make_engine(whole, "whole"), make_engine(cut, "cut"))


@pytest.fixture(scope="module")
def samples():
    return load_samples(DataRecipe(**DATA), 0)[0]


def test_the_same_layers_are_found_where_a_rule_by_depth_would_miss_them(pair, samples):
    assert closest_layers(*positions(pair, samples)) == (0, 1, 2)
    assert align_layers(5, 3, "depth") == (0, 2, 4)


def test_what_explains_a_layer_is_measured_where_it_was_not_fitted():
    """The wide layer fits every row it saw, and none that it did not; the narrow one tells a part of each."""
    torch.manual_seed(0)
    truth = torch.randn(400, 4)
    noise, hint = torch.randn(400, 600), truth + torch.randn(400, 4)
    assert closest_layers([noise, hint], [truth]) == (1,)
    assert closest_layers([hint, noise], [truth, noise]) == (0, 1)


def test_too_few_positions_are_refused():
    with pytest.raises(AdapterError, match="15 positions are too few"):
        closest_layers([torch.randn(15, 3)], [torch.randn(15, 3)])


def test_other_arguments_stay_as_they_are(pair, samples):
    assert with_layers({"layers": "depth", "slots": 3}, pair, samples) == {"layers": "depth", "slots": 3}
    assert with_layers({"layers": "closest", "slots": 3}, pair, samples) == {"layers": (0, 1, 2), "slots": 3}


def test_a_bundle_says_which_layers_were_found(pair, samples, tmp_path):
    recipe = Recipe.model_validate(
        {
            "adapter": "lcf_mapped",
            "arguments": {"layers": "closest"},
            "sender": "whole",
            "receiver": "cut",
            "data": DATA,
            "closed_form": {"texts": 20},
            "steps": 0,
        }
    )
    bundle = train(recipe, pair.sender, pair.receiver, tmp_path / "work", tmp_path / "bundle")
    assert open_bundle(bundle.folder).card.arguments["layers"] == [0, 1, 2]
