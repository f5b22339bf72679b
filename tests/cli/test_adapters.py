"""`agentflow adapters`: bundles listed, looked into, imported from the published form and written back."""

from __future__ import annotations

import json

import pytest

from agentflow.adapters.base import make_adapter
from agentflow.adapters.bundle import open_bundle, save_bundle
from agentflow.adapters.card import End
from agentflow.kv.geometry import Geometry
from tests.adapters.samples import bundle_of, randomised
from tests.cli.conftest import save_tiny
from tests.tiny import tiny_engine


@pytest.fixture
def bundle(place, tmp_path):
    return bundle_of(tmp_path / "cache" / "adapters" / "pair", tiny_engine(), tiny_engine())


def test_a_bundle_is_listed_and_shown(bundle, cli):
    rows = [line.split() for line in cli("adapters", "list").out.splitlines()]
    assert rows[1] == ["pair", "c2c", "tiny-llama-0", "tiny-llama-0"]  # before those that ship
    (listed,) = [b for b in cli("adapters", "list", "--json").json if b["name"] == "pair"]
    assert listed["digest"] == bundle.card.digest
    shown = cli("adapters", "show", "pair")
    assert shown.code == 0
    for word in ("4 layers, 2 KV heads x 8", "Apache-2.0", "recipe.steps", "metrics.nll"):
        assert word in shown.out
    found = cli("adapters", "show", str(bundle.folder), "--json").json
    assert found["parameters"] == bundle.load().parameter_count
    assert found["bytes"] > 4 * found["parameters"]


def test_a_damaged_bundle_is_one_plain_error(bundle, cli):
    weights = bundle.folder / "adapter.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = cli("adapters", "show", "pair")
    assert ended.code == 2
    assert "adapter.safetensors" in ended.err
    assert "can't be read" in ended.err
    assert "Traceback" not in ended.err


def test_a_published_folder_goes_in_and_out_by_configurations_alone(bundle, cli, tmp_path):
    model = save_tiny(tmp_path / "model")
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    assert cli("adapters", "export", "pair", "--out", str(tmp_path / "final")).code == 0
    ends = ("--sender", str(model), "--receiver", str(model))
    target = tmp_path / "made"
    made = cli("adapters", "import", str(tmp_path / "final"), *ends, "--out", str(target), "--license", "MIT")
    assert made.code == 0, made.err
    card = open_bundle(target).card
    assert (card.license, card.sender.source, card.sender.weights) == ("MIT", str(model), "")
    assert open_bundle(target).load().parameter_count == bundle.load().parameter_count


def test_a_model_whose_configuration_is_not_here_is_told_how_to_get(bundle, cli, tmp_path):
    ended = cli("adapters", "import", "x", "--sender", "who/what", "--receiver", "who/what", "--out", "y")
    assert ended.code == 2
    assert (
        "The configuration of 'who/what' is not on this machine. Get it: agentflow models show who/what --fetch."
        in (" ".join(ended.err.split()))
    )


def test_the_list_of_no_bundles_says_so(place, cli):
    names = [b["name"] for b in json.loads(cli("adapters", "list", "--json").out)]
    assert "pair" not in names


def test_a_bundle_is_pruned_to_a_smaller_one(place, cli, tmp_path):
    ends = [End.of(tiny_engine().loaded)] * 2
    made = make_adapter("lcf_aligned", *(Geometry(end.geometry) for end in ends), {"width": 8})
    save_bundle(tmp_path / "whole", randomised(made), *ends, recipe={"steps": 3}, license="MIT")
    ended = cli("adapters", "prune", str(tmp_path / "whole"), "--layers", "2", "--out", str(tmp_path / "small"))
    assert ended.code == 0, ended.err
    card = open_bundle(tmp_path / "small").card
    assert len(card.arguments["only"]) == 2
    assert (card.license, card.metrics, card.recipe["pruned_from"]) == (
        "MIT",
        {},
        open_bundle(tmp_path / "whole").card.digest,
    )
    assert open_bundle(tmp_path / "small").load().parameter_count < made.parameter_count
    refused = cli("adapters", "prune", str(tmp_path / "whole"), "--layers", "9", "--out", str(tmp_path / "none"))
    assert refused.code == 2
    assert "so 9 of them can't be kept" in refused.err
    assert not (tmp_path / "none").exists()
