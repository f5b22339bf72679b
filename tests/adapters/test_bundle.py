"""Bundles: what is written is read; what is damaged, foreign or something else is refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentflow.adapters import bundle as bundles_module
from agentflow.adapters.bundle import CARD, WEIGHTS, bundle_for, bundles, find_bundle, open_bundle, save_bundle
from agentflow.adapters.card import End
from agentflow.adapters.published import export_published, import_published
from agentflow.errors import AdapterError
from agentflow.models.spec import ModelSpec
from tests.adapters.samples import bundle_of, randomised
from tests.tiny import tiny_engine


@pytest.fixture
def made(tmp_path):
    return bundle_of(tmp_path / "pair", tiny_engine(), tiny_engine("qwen2"))


def equal(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def test_what_is_written_is_read(made):
    read = open_bundle(made.folder)
    assert read == made
    adapter = read.load()
    assert equal(adapter, randomised(made.empty().to_empty(device="cpu"), scale=0.1))
    assert adapter.arguments.width == 16
    card = read.card
    assert (card.adapter, card.recipe, card.metrics, card.license) == ("c2c", {"steps": 3}, {"nll": 1.5}, "Apache-2.0")
    assert card.sender.weights == tiny_engine().fingerprint.weights
    assert not adapter.training


def test_whoever_reads_the_folder_above_reads_the_bundle(tmp_path):
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared").chmod(0o755)
    folder = bundle_of(tmp_path / "shared" / "pair", tiny_engine(), tiny_engine("qwen2")).folder
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}


def test_weights_can_be_stored_in_half_the_bytes(made, tmp_path):
    half = save_bundle(tmp_path / "half", made.load(), made.card.sender, made.card.receiver, dtype=torch.float16)
    assert {t.dtype for t in half.load().state_dict().values()} == {torch.float16}


def test_a_bundle_that_is_there_is_replaced_as_a_whole(made):
    (made.folder / "stray").write_text("x")
    save_bundle(made.folder, made.load(), made.card.sender, made.card.receiver, license="MIT")
    assert open_bundle(made.folder).card.license == "MIT"
    assert sorted(p.name for p in made.folder.iterdir()) == [CARD, WEIGHTS]
    assert [p.name for p in made.folder.parent.iterdir()] == ["pair"]


def change_card(folder, **changes):
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps(card | changes))


def change_weights(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda f: (f / CARD).unlink(), r"adapter\.json: There is no adapter bundle here"),
        (lambda f: (f / CARD).write_text("no"), r"adapter\.json: This card can't be used"),
        (lambda f: (f / CARD).write_text(" " * (1 << 20) + "{}"), "more than 1,048,576 bytes"),
        (lambda f: change_card(f, format=2), "format"),
        (lambda f: change_card(f, licence="x"), "unknown setting 'licence'.*did you mean 'license'"),
        (lambda f: change_card(f, adapter="c3c"), "Unknown adapter 'c3c'. Did you mean 'c2c'"),
        (lambda f: change_card(f, arguments={"width": 17}), "has the shape"),
        (lambda f: change_card(f, arguments={"width": 1 << 40}), "width"),
        (lambda f: (f / WEIGHTS).unlink(), r"adapter\.safetensors: The bundle has no weights"),
        (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-4]), "can't be read"),
        (lambda f: (f / WEIGHTS).write_bytes(b"PK\x03\x04" * 99), "can't be read"),
        (lambda f: change_weights(f, lambda t: t["keys.0.join.bias"].add_(1)), "digest is not the card's"),
        (lambda f: change_weights(f, lambda t: t.pop("keys.1.gate")), r"'keys\.1\.gate' is missing"),
        (lambda f: change_weights(f, lambda t: t.update(x=torch.zeros(1))), "'x' is not one of its tensors"),
        (lambda f: change_weights(f, lambda t: t.update({"keys.1.gate": torch.zeros(2)})), r"the shape \[2\]"),
        (
            lambda f: change_weights(f, lambda t: t.update({"keys.1.gate": torch.zeros((), dtype=torch.int64)})),
            "number format I64",
        ),
    ],
)
def test_what_is_damaged_or_something_else_is_refused(made, harm, what):
    harm(made.folder)
    with pytest.raises(AdapterError, match=what):
        open_bundle(made.folder).load()


def test_another_pair_is_refused_by_name_of_what_differs(made):
    sender, mine = made.card.sender, tiny_engine().fingerprint
    assert sender.require("sender", mine, same_source=False) == ()
    other = tiny_engine("llama", seed=5).fingerprint
    with pytest.raises(
        AdapterError,
        match=r"made for the sender 'tiny-llama-0', and 'tiny-llama-5' is another one: "
        "different weights",
    ):
        sender.require("sender", other, same_source=False)
    with pytest.raises(AdapterError, match=r"different geometry.*weights.*rope"):
        sender.require("sender", tiny_engine("gpt-neox").fingerprint, same_source=False)


def test_another_rounding_of_the_same_source_is_told_and_not_refused(made):
    other = tiny_engine("llama", seed=5).fingerprint
    (told,) = made.card.sender.require("sender", other, same_source=True)
    assert told.startswith("the adapter was made with other weights")
    with pytest.raises(AdapterError, match="different geometry"):
        made.card.sender.require("sender", tiny_engine("gpt-neox").fingerprint, same_source=True)


def test_what_a_card_does_not_know_is_not_compared(made):
    vague = made.card.sender.model_copy(update={"weights": "", "tokenizer": "", "rope": ""})
    assert vague.require("sender", tiny_engine("llama", seed=5).fingerprint, same_source=False) == ()


def test_bundles_are_found_by_folder_by_name_and_by_pair(made, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))
    shutil.copytree(made.folder, tmp_path / "cache" / "adapters" / "mine")
    (tmp_path / "cache" / "adapters" / "broken").mkdir()
    (tmp_path / "cache" / "adapters" / "broken" / CARD).write_text("no")
    assert find_bundle(made.folder).folder == made.folder
    assert find_bundle("mine").card == made.card
    assert "mine" in {b.name for b in bundles()}
    sender, receiver = (e.loaded.spec for e in (tiny_engine(), tiny_engine("qwen2")))
    found = bundle_for("c2c", sender, receiver)
    assert found is not None
    assert found.name == "mine"
    assert bundle_for("c2c", receiver, sender) is None
    assert bundle_for("lcf", sender, receiver) is None
    with pytest.raises(AdapterError, match=r"no adapter bundle 'mina'\. Name a bundle's folder, or one of: .*mine"):
        find_bundle("mina")


def test_a_folder_that_cannot_be_written_is_one_plain_error(made, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(AdapterError, match="can't be written"):
        save_bundle(tmp_path / "file" / "b", made.load(), made.card.sender, made.card.receiver)


# -- the published form ------------------------------------------------------------------------------------


@pytest.fixture
def published(made, tmp_path):
    export_published(made, tmp_path / "published")
    return tmp_path / "published"


def imported(folder, made, target):
    return import_published(folder, made.card.sender, made.card.receiver, target, license="Apache-2.0")


def test_import_export_import_is_the_identity(made, published, tmp_path):
    first = imported(published, made, tmp_path / "first")
    assert equal(first.load(), made.load())
    export_published(first, tmp_path / "again")
    second = imported(tmp_path / "again", made, tmp_path / "second")
    assert second.card == first.card
    assert equal(second.load(), first.load())
    for path in published.iterdir():
        if path.suffix == ".json":
            assert path.read_text() == (tmp_path / "again" / path.name).read_text()


def test_the_published_names_and_shapes(published):
    state = torch.load(published / "projector_0.pt", weights_only=True)
    assert {n.removeprefix("key_").removeprefix("value_") for n in state} == {
        "in.weight", "in.bias", "gate_logit", "gate_temperature", "scalar_head.weight", "scalar_head.bias",
        "proj_out.weight", "proj_out.bias",
        *(f"{b}.blocks.0.{w}.weight" for b in ("mlp1", "scalar_mlp2", "proj_mlp2") for w in ("norm", "w1", "w2")),
    }  # fmt: skip
    config = json.loads((published / "projector_3.json").read_text())
    assert config["class"] == "C2CProjector"
    assert config["init_args"] | {"hidden_dim": 16, "num_layers": 3, "source_num_heads": 2} == config["init_args"]
    assert json.loads((published / "projector_config.json").read_text())["0"]["1"]["3"] == [[3, 3]]


def test_bfloat16_weights_stay_what_they_are(made, tmp_path):
    narrow = save_bundle(tmp_path / "n", made.load(), made.card.sender, made.card.receiver, dtype=torch.bfloat16)
    export_published(narrow, tmp_path / "p")
    back = imported(tmp_path / "p", made, tmp_path / "b")
    assert equal(back.load(), narrow.load())


def rewrite(folder, name, change):
    path = folder / name
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def resave(folder, change):
    path = folder / "projector_1.pt"
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


class Sneaky:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda f: (f / "projector_config.json").unlink(), "can't be read"),
        (lambda f: rewrite(f, "projector_config.json", lambda c: c["0"]["1"].pop("2")), "does not join one"),
        (lambda f: rewrite(f, "projector_config.json", lambda c: c["0"]["1"].update({"2": [[0, 1]]})), "one a layer"),
        (lambda f: rewrite(f, "projector_config.json", lambda c: c["0"]["1"].update({"2": [[9, 2]]})), "don't join"),
        (lambda f: (f / "projector_config.json").write_text("[]"), "is no mapping"),
        (lambda f: (f / "projector_2.json").write_text("{"), "no JSON"),
        (lambda f: (f / "projector_2.json").write_text(" " * (1 << 20) + "{}"), "more than 1,048,576 bytes"),
        (lambda f: rewrite(f, "projector_2.json", lambda c: c.update({"class": "Other"})), "no C2CProjector"),
        (lambda f: rewrite(f, "projector_2.json", lambda c: c["init_args"].update(hidden_dim=8)), "all of one size"),
        (lambda f: rewrite(f, "projector_2.json", lambda c: c["init_args"].update(source_dim=9)),
         "sender has 2 KV heads of 9; 'tiny-llama-0' has 2 of 8"),
        (lambda f: rewrite(f, "projector_config.json", lambda c: c["0"]["1"].update({"2": [[float("inf"), 2]]})),
         "does not join one"),
        (lambda f: resave(f, lambda s: s.update(gate_temperature=torch.ones(2))), "no single number"),
        (lambda f: (f / "projector_1.pt").unlink(), "weights are missing"),
        (lambda f: (f / "projector_1.pt").write_bytes(b"x" * (1 << 23)), "more bytes than"),
        (lambda f: (f / "projector_1.pt").write_bytes(b"nonsense"), "no file of tensors"),
        (lambda f: torch.save({"key_in.weight": Sneaky()}, f / "projector_1.pt"), "no file of tensors"),
        (lambda f: torch.save([1], f / "projector_1.pt"), "something else than tensors"),
        (lambda f: resave(f, lambda s: s.pop("key_in.bias")), r"'key_in\.bias' is missing here"),
        (lambda f: resave(f, lambda s: s.update({"key_in.bias": torch.zeros(3)})), r"the shape \(3,\)"),
    ],
)  # fmt: skip
def test_a_published_folder_that_is_not_what_it_should_be_is_refused(made, published, tmp_path, harm, what, capsys):
    harm(published)
    with pytest.raises(AdapterError, match=what):
        imported(published, made, tmp_path / "target")
    assert "run" not in capsys.readouterr().out
    assert not (tmp_path / "target").exists()


def test_only_c2c_has_a_published_form_and_folders_are_not_overwritten(made, published, monkeypatch):
    with pytest.raises(AdapterError, match="can't be made"):
        export_published(made, published)
    monkeypatch.setattr(bundles_module.Bundle, "load", lambda _: type("Other", (torch.nn.Module,), {"name": "o"})())
    with pytest.raises(AdapterError, match="not 'o'"):
        export_published(made, published.parent / "new")


def test_a_specification_is_this_end_only_by_its_source_and_revision():
    end = End(model="m", source="a/b", geometry=((1, 1, 1),))
    assert end.same_source(ModelSpec(model="m", source="a/b"))
    assert not end.same_source(ModelSpec(model="m", source="a/b", revision="r"))
    assert not End(model="m", geometry=((1, 1, 1),)).same_source(ModelSpec(model="m", source="a/b"))
