"""`agentflow train` on tiny models: plain lines, a bundle that `compare` finds, clear errors."""

from __future__ import annotations

import pytest

from agentflow.adapters.bundle import open_bundle

RECIPE = """\
sender: tiny
receiver: tiny
arguments: {width: 8}
data: {settings: {facts: 1, questions: 1}, train: 4, held_out: 2}
steps: 4
batch: 2
validate_every: 2
"""


@pytest.fixture
def recipe(place):
    (place / "mine.yaml").write_text(RECIPE)
    return place


def test_a_training_tells_its_steps_and_leaves_a_bundle_metrics_and_a_plot(recipe, cli):
    ended = cli("train", "mine.yaml", "--steps", "3")
    assert ended.code == 0, ended.err
    assert "step 1 of 3: loss" in ended.err
    assert "tokens/s; held out: NLL" in ended.err
    for name in ("message", "receiver alone", "zero", "mismatched", "sender alone"):
        assert name in ended.out
    card = open_bundle(recipe / "configs" / "adapters" / "mine").card
    assert card.recipe["steps_done"] == 3
    assert (recipe / "runs" / "train" / "mine" / "metrics.json").is_file()
    assert (recipe / "runs" / "train" / "mine" / "loss.png").read_bytes().startswith(b"\x89PNG")
    compared = cli("compare", "facts.yaml", "-n", "1", "--channels", "text,c2c", "--no-likelihood", "--json")
    assert compared.code == 0, compared.err


def test_folders_can_be_chosen_and_results_read_by_machines(recipe, cli, tmp_path):
    folders = ("--out", str(tmp_path / "b"), "--work", str(tmp_path / "w"))
    found = cli("train", "mine.yaml", "--json", *folders).json
    assert found["bundle"] == str(tmp_path / "b")
    assert found["metrics"]["answers"] == 2
    assert (tmp_path / "w" / "checkpoint.safetensors").is_file()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("steps: 4", "stepps: 4"), "mine.yaml:5:1 – stepps: unknown setting 'stepps'. Did you mean 'steps'"),
        (("width: 8", "widht: 8"), "unknown setting 'widht'"),
        (("facts: 1", "factss: 1"), "factss"),
        (("receiver: tiny", "receiver: tinny"), "tinny"),
        (("train: 4", "sender_system: []"), "must be a text or must have at least 1 entry, not []"),
        (("train: 4", "sender_system: 4"), "'data.sender_system' must be a text or must be a list, not 4"),
    ],
)
def test_wrong_recipes_are_one_plain_error(recipe, cli, change, what):
    (recipe / "mine.yaml").write_text(RECIPE.replace(*change))
    ended = cli("train", "mine.yaml")
    assert ended.code == 2
    assert what in " ".join(ended.err.split())
    assert "Traceback" not in ended.err


def test_an_unknown_recipe_names_those_that_ship(recipe, cli):
    ended = cli("train", "nine")
    assert ended.code == 2
    assert "There is no recipe 'nine'. Name a file, or one that ships: c2c-self," in " ".join(ended.err.split())


SMALLER = "model: small\nteacher: tiny\nleave_out: [2]\nconversations: 4\nwindow: 16\nheld_out: 1\nsteps: 2\nbatch: 1\n"


def test_a_derived_model_is_told_step_by_step_and_stands_in_the_cache_folder(place, cli, tmp_path):
    (place / "smaller.yaml").write_text(SMALLER)
    ended = cli("models", "derive", "smaller.yaml")
    assert ended.code == 0, ended.err
    assert "writing 4 conversations …" in ended.err
    assert "step 2 of 2: loss" in ended.err
    assert "held out: KL" in ended.err
    for name in ("the original", "layers left out", "healed"):
        assert name in ended.out
    assert (tmp_path / "cache" / "models" / "small" / "config.json").is_file()
    again = cli("models", "derive", "smaller.yaml", "--json").json
    assert again["metrics"]["after"]["kl"] >= 0
    folders = ("--to", str(tmp_path / "elsewhere"), "--work", str(tmp_path / "w"))
    assert cli("models", "derive", "smaller.yaml", "--json", *folders).json["model"] == str(tmp_path / "elsewhere")
    assert cli("models", "show", str(tmp_path / "elsewhere"), "--fetch").code == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("leave_out: [2]", "leave_out: [9]"), "There is no layer 9 to leave out: the teacher has 4, from 0."),
        (("leave_out: [2]", "leave_out: 2"), "smaller.yaml:3:12 – leave_out"),
        (("window", "windw"), "smaller.yaml:5:1 – windw: unknown setting 'windw'. Did you mean 'window'"),
        (("teacher: tiny", "teacher: tinny"), "tinny"),
    ],
)
def test_wrong_derivations_are_one_plain_error(place, cli, change, what):
    (place / "smaller.yaml").write_text(SMALLER.replace(*change))
    ended = cli("models", "derive", "smaller.yaml")
    assert ended.code == 2
    assert what in " ".join(ended.err.split())
    assert "Traceback" not in ended.err


def test_an_unknown_derivation_names_those_that_ship(cli):
    ended = cli("models", "derive", "nine")
    assert "There is no recipe 'nine'. Name a file, or one that ships: smollm2-135m-26." in " ".join(ended.err.split())


def test_what_needs_no_gradient_can_be_had_alone_and_left_out(recipe, cli, tmp_path):
    (recipe / "map.yaml").write_text(
        RECIPE.replace("{width: 8}", "{neighbours: 1}").replace(
            "sender: tiny\n", "adapter: lcf_mapped\nsender: tiny\n", 1
        )
    )

    def steps_done(name, *options):
        ended = cli("train", "map.yaml", *options, "--out", str(tmp_path / name), "--work", str(tmp_path / f"{name}-w"))
        assert ended.code == 0, ended.err
        return open_bundle(tmp_path / name).card.recipe["steps_done"], ended

    done, ended = steps_done("closed", "--method", "closed-form")
    assert done == 0
    assert "reading the texts in both models" in ended.err
    assert (tmp_path / "closed-w" / "loss.png").is_file()
    done, ended = steps_done("gradient", "--method", "gradient", "--steps", "2")
    assert done == 2
    assert "reading the texts" not in ended.err
    refused = cli("train", "mine.yaml", "--method", "closed-form")
    assert refused.code == 2
    assert "Nothing of 'c2c' can be found in closed form" in refused.err
