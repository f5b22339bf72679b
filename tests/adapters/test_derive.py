"""Deriving a model on tiny ones: layers left out, healed, the same after kill -9, an ordinary folder in the end."""

from __future__ import annotations

import json
import os
import time

import pytest
import torch

from agentflow.adapters.derive.distilling import CHECKPOINT, LESSON, derive
from agentflow.adapters.derive.folder import NOTES
from agentflow.adapters.derive.recipe import Derivation
from agentflow.adapters.derive.student import Student
from agentflow.errors import AdapterError, DataError, ModelError, UserError
from agentflow.models.engine import Engine
from agentflow.models.loading import load_model
from agentflow.models.requests import Request
from agentflow.models.spec import resolve_model
from agentflow.workflow.configs import load_config
from agentflow.workflow.library import find
from tests.adapters.killing import killed_after
from tests.tiny import FAMILIES, make_engine, tiny_engine, tiny_model, words

BASE = {
    "model": "small",
    "teacher": "t",
    "leave_out": [1, 2],
    "conversations": 8,
    "window": 16,
    "batch": 2,
    "held_out": 2,
}


def recipe(**changes):
    return Derivation.model_validate({**BASE, **changes})


def run(folder, name="small", shown=lambda _step: None, **changes):
    told = []
    work, target = folder / f"{name}.work", folder / name
    metrics = derive(recipe(**changes), tiny_engine(), work, target, lambda what, _: told.append(what), shown)
    return metrics, told


def weights(folder):
    model = load_model(resolve_model(str(folder))).model
    return {name: t.numpy().tobytes() for name, t in model.state_dict().items()}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))


def test_a_derived_model_comes_nearer_to_its_teacher_and_is_an_ordinary_folder(tmp_path):
    seen = []
    metrics, _ = run(tmp_path, steps=40, learning_rate=0.01, validate_every=20, license="Apache-2.0", shown=seen.append)
    assert metrics["after"]["kl"] < metrics["before"]["kl"] * 0.8
    assert metrics["before"]["nll"] > 0 < metrics["teacher"]["nll"]
    assert [step.step for step in seen if step.validated] == [20, 40]
    assert sum(s.loss for s in seen[-5:]) < sum(s.loss for s in seen[:5])
    engine = Engine(load_model(resolve_model(str(tmp_path / "small"))))
    assert len(engine.fingerprint.geometry.layers) == 2
    assert engine.fingerprint.tokenizer == tiny_engine().fingerprint.tokenizer
    assert engine.generate([Request(tuple(words(9)), max_new_tokens=4)])[0].token_ids
    card = (tmp_path / "small" / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert "base_model: tests/tiny-llama-0" in card
    assert "layers 1, 2 (from 0) are left out" in " ".join(card.split())
    notes = json.loads((tmp_path / "small" / NOTES).read_text())
    assert notes["metrics"] == metrics
    assert len([row for row in notes["log"] if "loss" in row]) == 40


def test_below_the_first_layer_left_out_the_model_is_the_teacher_bit_for_bit(tmp_path):
    run(tmp_path, steps=3, learning_rate=0.01)
    new = load_model(resolve_model(str(tmp_path / "small"))).model.state_dict()
    old = tiny_engine().loaded.model.state_dict()
    for name in new:
        number = 3 if ".layers.1." in name else 0
        like = old[name.replace(".layers.1.", f".layers.{number}.")]
        learnt = ".layers.1." in name or name == "model.norm.weight"
        assert torch.equal(new[name], like) is not learnt, name


def test_the_teacher_stays_as_it_is(tmp_path):
    before = [p.clone() for p in tiny_engine().loaded.model.parameters()]
    run(tmp_path, steps=2)
    after = list(tiny_engine().loaded.model.parameters())
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_upper_part_behind_the_teachers_states_is_the_whole_model(family):
    teacher = tiny_model(family)
    student = Student(teacher, [1])
    ids = torch.tensor([words(20)])
    with torch.no_grad():
        below = teacher(ids, output_hidden_states=True, use_cache=False).hidden_states[1]
        apart, whole = student.logits(below), student.whole()(ids, use_cache=False).logits
    torch.testing.assert_close(apart, whole, atol=1e-5, rtol=1e-5)
    assert len(student.kept) == 3


def test_a_teacher_that_caps_its_logits_is_refused(tmp_path):
    engine = make_engine(tiny_model("gemma2", final_logit_softcapping=1.0), "capped")
    with pytest.raises(ModelError, match="makes its logits in a way of its own"):
        derive(recipe(), engine, tmp_path / "w", tmp_path / "m")


@pytest.mark.parametrize(
    ("layers", "what"), [([1, 4], "no layer 4 to leave out: the teacher has 4"), ([0, 1, 2, 3], "All 4 layers")]
)
def test_layers_that_do_not_fit_are_refused_before_anything_is_made(tmp_path, layers, what):
    with pytest.raises(ModelError, match=what):
        run(tmp_path, leave_out=layers)
    assert not list(tmp_path.glob("small*"))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"leave_out": []}, "leave_out"),
        ({"leave_out": [1, 1]}, "named twice"),
        ({"leave_out": [-1]}, "leave_out"),
        ({"model": "../elsewhere"}, "model"),
        ({"stepps": 3}, "stepps"),
    ],
)
def test_wrong_recipes_are_refused(changes, what):
    with pytest.raises(ValueError, match=what):
        recipe(**changes)


def test_texts_of_a_file_are_learnt_from_and_too_few_are_refused(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": f"the code of room {n} is seven"}) + "\n" for n in range(9)))
    metrics, told = run(tmp_path, steps=2, file=file)
    assert metrics["learnt_tokens"] > 16
    assert not [what for what in told if "writing" in what]
    assert "the texts of texts.jsonl" in (tmp_path / "small" / "README.md").read_text()
    with pytest.raises(DataError, match="windows of 512"):
        run(tmp_path, name="other", file=file, window=512)
    file.write_text('{"txt": "x"}\n')
    with pytest.raises(UserError, match="no 'text'"):
        run(tmp_path, name="third", file=file)


def work(folder, slowly):
    """What a process does that will be killed, or goes on."""
    os.environ["AGENTFLOW_CACHE"] = str(folder / "cache")
    engine = make_engine(tiny_model("llama"), "tiny-llama-0")
    chosen = recipe(steps=12, checkpoint_every=3, validate_every=6)
    derive(chosen, engine, folder / "work", folder / "model", shown=lambda _: time.sleep(slowly))


@pytest.mark.slow
def test_a_derivation_that_is_killed_ends_with_the_weights_of_one_that_ran_through(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    work(tmp_path / "whole", 0)
    killed_after(tmp_path / "killed" / "work" / CHECKPOINT, work, tmp_path / "killed", 0.3)
    assert not (tmp_path / "killed" / "model").exists()
    work(tmp_path / "killed", 0)
    assert weights(tmp_path / "killed" / "model") == weights(tmp_path / "whole" / "model")
    notes = [json.loads((tmp_path / name / "model" / NOTES).read_text()) for name in ("whole", "killed")]
    assert notes[0] == notes[1]


def test_what_is_made_is_left_as_it_is_and_what_others_made_is_refused(tmp_path):
    first, _ = run(tmp_path, steps=2)
    stamp = (tmp_path / "small" / NOTES).stat().st_mtime_ns
    again, told = run(tmp_path, steps=2)
    assert (again, told) == (first, [])
    assert (tmp_path / "small" / NOTES).stat().st_mtime_ns == stamp
    with pytest.raises(AdapterError, match="another recipe or another teacher"):
        run(tmp_path, steps=3)
    (tmp_path / "other").mkdir()
    with pytest.raises(AdapterError, match="something else than a derived model"):
        run(tmp_path, name="other")


def test_a_folder_of_another_derivation_or_a_damaged_one_is_refused(tmp_path):
    run(tmp_path, steps=2)
    (tmp_path / "small.work").rename(tmp_path / "b.work")
    with pytest.raises(AdapterError, match="another derivation"):
        run(tmp_path, name="b", steps=3)
    path = tmp_path / "b.work" / LESSON
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(AdapterError, match="can't be read"):
        run(tmp_path, name="b", steps=2)


def test_a_loss_that_is_no_number_ends_it(tmp_path):
    with pytest.raises(AdapterError, match=r"The loss of step \d+ is .*Lower the learning rate"):
        run(tmp_path, steps=20, learning_rate=1e30, clip=1e30)


def test_a_model_that_is_made_here_is_found_by_name_or_says_how_to_make_it(tmp_path):
    spec = resolve_model("smollm2-135m-26")
    assert spec.recipe == "smollm2-135m-26"
    with pytest.raises(ModelError, match=r"not made on this machine yet") as told:
        load_model(spec)
    assert told.value.fix == "Make it: agentflow models derive smollm2-135m-26."
    run(tmp_path / "cache" / "models", name="smollm2-135m-26", steps=1)
    assert len(load_model(spec).fingerprint.geometry.layers) == 2


def test_the_recipes_that_ship_are_recipes_of_models_with_a_config():
    path = find("configs/derive/smollm2-135m-26.yaml")
    assert path is not None
    assert resolve_model(load_config(path, Derivation).model).recipe == path.stem
