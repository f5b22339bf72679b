"""Training on tiny models: it learns, goes on after kill -9 to the same weights, and is measured beside controls."""

from __future__ import annotations

import json
import time

import pytest
import torch
from accelerate.state import AcceleratorState

from agentflow.adapters.base import make_adapter
from agentflow.adapters.examples import load_samples, make_examples
from agentflow.adapters.passes import Pair
from agentflow.adapters.recipe import DataRecipe, Recipe
from agentflow.adapters.training import CHECKPOINT, METRICS, train
from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.errors import AdapterError, UserError
from agentflow.models.chat import conversation, render
from agentflow.workflow.configs import load_config
from agentflow.workflow.library import find, shipped
from agentflow.workflow.loader import load_workflow
from tests.adapters.killing import killed_after
from tests.adapters.samples import bundle_of, randomised
from tests.tiny import make_engine, tiny_engine, tiny_model

DATA = {"task": "private_facts", "settings": {"facts": 1, "questions": 1}, "train": 12, "held_out": 4}
BASE = {"sender": "a", "receiver": "b", "arguments": {"width": 16}, "data": DATA, "batch": 2}


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """Accelerate keeps its precision for a whole process; tests take turns with several."""
    AcceleratorState._reset_state(reset_partial_state=True)


def recipe(**changes):
    return Recipe.model_validate({**BASE, **changes})


def pair():
    return tiny_engine("llama"), tiny_engine("qwen2")


def run(tmp_path, name="t", shown=lambda _progress: None, **changes):
    folders = tmp_path / f"{name}.work", tmp_path / name
    return train(recipe(**changes), *pair(), *folders, shown)


def weights(bundle):
    return {name: t.numpy().tobytes() for name, t in bundle.load().state_dict().items()}


def test_training_lowers_the_loss_and_the_held_out_answers_are_measured_beside_controls(tmp_path):
    seen = []
    made = run(tmp_path, steps=30, learning_rate=0.02, validate_every=10, shown=seen.append)
    losses = [p.loss for p in seen]
    assert sum(losses[-5:]) < sum(losses[:5]) - 1
    metrics = made.card.metrics
    assert {"message", "receiver alone", "zero", "mismatched", "sender alone"} <= metrics.keys()
    assert metrics["message"]["nll"] < metrics["receiver alone"]["nll"] - 0.2
    assert [p.step for p in seen if p.validated] == [10, 20, 30]
    assert made.card.recipe["learning_rate"] == 0.02
    log = json.loads((tmp_path / "t.work" / METRICS).read_text())["log"]
    assert len([row for row in log if "loss" in row]) == 30


def test_the_models_stay_as_they_are(tmp_path):
    before = [p.clone() for e in pair() for p in e.loaded.model.parameters()]
    run(tmp_path, steps=2)
    after = [p for e in pair() for p in e.loaded.model.parameters()]
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, after, strict=True))


def work(folder, slowly):
    """What a process does that will be killed, or goes on."""
    sender, receiver = (
        make_engine(tiny_model("llama"), "tiny-llama-0"),
        make_engine(tiny_model("qwen2"), "tiny-qwen2-0"),
    )
    chosen = recipe(steps=12, checkpoint_every=3, validate_every=6, arguments={"width": 16, "dropout": 0.1})
    train(chosen, sender, receiver, folder / "work", folder / "bundle", lambda _: time.sleep(slowly))


@pytest.mark.slow
def test_a_training_that_is_killed_ends_with_the_weights_of_one_that_ran_through(tmp_path):
    from agentflow.adapters.bundle import open_bundle

    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    work(tmp_path / "whole", 0)
    killed_after(tmp_path / "killed" / "work" / CHECKPOINT, work, tmp_path / "killed", 0.3)
    assert not (tmp_path / "killed" / "bundle").exists()
    work(tmp_path / "killed", 0)
    whole, resumed = (open_bundle(tmp_path / name / "bundle") for name in ("whole", "killed"))
    assert weights(resumed) == weights(whole)
    logs = [json.loads((tmp_path / n / "work" / METRICS).read_text())["log"] for n in ("whole", "killed")]
    assert logs[0] == logs[1]


def test_going_on_needs_the_same_recipe_and_a_whole_checkpoint(tmp_path):
    first = run(tmp_path, steps=3, checkpoint_every=1)
    again = run(tmp_path, steps=3, checkpoint_every=1)
    assert weights(again) == weights(first)
    with pytest.raises(AdapterError, match="holds another training"):
        run(tmp_path, steps=4, checkpoint_every=1)
    path = tmp_path / "t.work" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(AdapterError, match="checkpoint can't be used"):
        run(tmp_path, steps=3, checkpoint_every=1)


@pytest.mark.parametrize(
    ("adapter", "arguments"),
    [
        ("lcf_aligned", {"width": 8}),
        ("lcf_pooled", {"width": 8}),
        ("lcf_mapped", {}),
        ("lcf_slots", {"slots": 4, "width": 8}),
        ("lcf_slots", {"slots": 500, "width": 8}),  # longer than the texts: what pools is never needed
        ("lcf_delta", {"d_z": 8, "width": 8}),
        ("lcf_delta", {"d_z": 8, "width": 8, "relative": False}),  # nor the receiver's own state
    ],
)
def test_a_training_that_goes_on_ends_with_the_weights_of_one_that_ran_through(tmp_path, adapter, arguments):
    class StopError(Exception):
        pass

    def stop(progress):
        if progress.step == 2:
            raise StopError

    changes = {"adapter": adapter, "arguments": arguments, "steps": 4, "checkpoint_every": 2}
    whole = run(tmp_path, "whole", **changes)
    with pytest.raises(StopError):
        run(tmp_path, "stopped", stop, **changes)
    assert weights(run(tmp_path, "stopped", **changes)) == weights(whole)


def test_going_on_needs_the_same_texts_in_a_file_of_the_same_name(tmp_path):
    data = {"task": "jsonl", "file": str(tmp_path / "data.jsonl"), "train": 8, "held_out": 3}

    def write(what):
        lines = [{"context": f"the {what} is {n}", "question": what, "answer": str(n)} for n in range(11)]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    write("code")
    run(tmp_path, data=data, steps=1)
    write("name")
    with pytest.raises(AdapterError, match="its data"):
        run(tmp_path, data=data, steps=1)


def test_it_stops_when_the_held_out_score_gets_no_better(tmp_path):
    seen = []
    made = run(tmp_path, steps=40, learning_rate=1e-12, validate_every=2, patience=2, shown=seen.append)
    assert len(seen) < 40
    assert made.card.recipe["steps_done"] == len(seen)


@pytest.mark.parametrize("changes", [{"accumulate": 2}, {"mixed_precision": "bf16"}, {"schedule": "linear"}])
def test_other_ways_to_step_run(tmp_path, changes):
    assert run(tmp_path, steps=2, **changes).load().parameter_count > 0


@pytest.mark.parametrize("adapter", ["c2c", "lcf_mapped", "lcf_slots", "lcf_aligned", "lcf_pooled", "lcf_delta"])
def test_gates_are_trained(tmp_path, adapter):
    small = {"lcf_mapped": {}, "lcf_slots": {"slots": 4, "width": 8}, "lcf_delta": {"d_z": 8, "width": 8}}
    arguments = small.get(adapter, {"width": 8})
    made = run(tmp_path, adapter=adapter, arguments=arguments, steps=3, weight_decay=0, learning_rate=0.1)
    gates = {name: t for name, t in made.load().state_dict().items() if name.endswith("gate")}
    assert gates
    assert all(bool(t.any()) for t in gates.values())


def test_accumulated_batches_make_the_step_of_one_large_batch(tmp_path):
    settings = {"steps": 1, "arguments": {"width": 16}, "temperature": (1.0, 1.0)}
    sender, receiver = pair()
    examples = make_examples(load_samples(DataRecipe(**DATA), 0)[0][:4], sender, receiver)
    marks = sender.fingerprint.geometry, receiver.fingerprint.geometry
    adapter = randomised(make_adapter("c2c", *marks, settings["arguments"]), scale=0.1)
    both = Pair(sender, receiver)
    whole = both.answer(adapter, examples).losses
    parts = [both.answer(adapter, examples[n : n + 2]).losses for n in (0, 2)]
    torch.testing.assert_close(whole, torch.cat(parts), atol=1e-5, rtol=1e-4)


def test_weights_of_half_the_bytes_are_those_that_were_measured(tmp_path):
    whole = run(tmp_path, steps=4, learning_rate=0.02)
    half = run(tmp_path, name="half", steps=4, learning_rate=0.02, weights="float16")
    sizes = [(bundle.folder / "adapter.safetensors").stat().st_size for bundle in (whole, half)]
    assert sizes[1] < 0.6 * sizes[0]
    for name, tensor in half.load().state_dict().items():
        assert torch.equal(tensor, whole.load().state_dict()[name].half())
    sender, receiver = pair()
    held_out = make_examples(load_samples(DataRecipe(**DATA), 0)[1], sender, receiver)
    adapter = half.load().ready(torch.device("cpu"), torch.float32)
    found = Pair(sender, receiver).measure(adapter, held_out, size=2)
    assert found.nll == pytest.approx(half.card.metrics["message"]["nll"], abs=1e-6)


def test_rates_and_temperatures_follow_their_schedules():
    made = recipe(steps=100, warmup=0.1, learning_rate=1.0, schedule="linear", temperature=(1.0, 0.01))
    assert made.rate(0) == pytest.approx(0.1)
    assert made.rate(9) == made.rate(10) == 1.0
    assert made.rate(55) == pytest.approx(0.5)
    assert made.heat(0) == 1.0
    assert made.heat(99) == pytest.approx(0.01)
    assert recipe(steps=100, schedule="constant", learning_rate=1.0).rate(99) == 1.0
    assert recipe(steps=100, schedule="cosine", learning_rate=1.0, warmup=0.0).rate(50) == pytest.approx(0.5, abs=0.02)


def test_training_fuses_as_the_channel_does(tmp_path):
    sender, receiver = pair()
    bundle = bundle_of(tmp_path / "b", sender, receiver)
    sample = load_samples(DataRecipe(**DATA), 0)[0][0]
    (example,) = make_examples([sample], sender, receiver)
    both = Pair(sender, receiver)
    theirs, own = both.read([example])
    with torch.no_grad():
        (fused,) = bundle.load()(theirs, own, both.ropes, [example.partners])
    turns = conversation("", sample.context)
    ids = tuple(render(sender.tokenizer, turns, reply=False))
    channel = make_channel("c2c", {"bundle": str(bundle.folder)})
    message = Message("read", turns, "", ids, sender.prefill(ids), sender)
    context = channel.receive(channel.send(message, Task("", "", receiver)), receiver)
    for a, b in zip(fused.keys, context.cache.keys, strict=True):
        torch.testing.assert_close(a, b[:, : a.shape[1]], atol=1e-5, rtol=1e-4)


def test_gates_shut_is_the_receiver_alone(tmp_path):
    sender, receiver = pair()
    examples = make_examples(load_samples(DataRecipe(**DATA), 0)[1], sender, receiver)
    shut = bundle_of(tmp_path / "b", sender, receiver, gate=-1.0).load()
    both = Pair(sender, receiver)
    alone, fused = (both.measure(shut, examples, way, size=2) for way in ("none", "right"))
    assert fused == alone


def test_only_the_answers_count(tmp_path):
    sender, receiver = pair()
    (example,) = make_examples(load_samples(DataRecipe(**DATA), 0)[1][:1], sender, receiver)
    losses = Pair(sender, receiver).answer(None, [example], "none").losses
    assert losses.shape == (len(example.answer),)
    prefix = receiver.prefill(example.own)
    wanted = -receiver.score(prefix, example.asked, example.answer).log_probs
    torch.testing.assert_close(losses, wanted, atol=1e-5, rtol=1e-4)


def test_lines_of_a_file_are_samples_and_its_first_ones_are_held_out(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"context": f"c{n}", "question": "q", "answer": f"a{n}"} for n in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataRecipe(task="jsonl", file=path, train=2, held_out=2)
    trained, held_out = load_samples(data, 0)
    assert ([s.answer for s in held_out], [s.answer for s in trained]) == (["a0", "a1"], ["a2", "a3"])
    with pytest.raises(UserError, match="5 items are too few"):
        load_samples(data.model_copy(update={"held_out": 5}), 0)
    path.write_text('{"context": "c", "question": "q"}\n')
    with pytest.raises(UserError, match=r"data\.jsonl.*no 'answer'"):
        load_samples(data, 0)


def test_hotpotqa_gives_paragraphs_as_context(tmp_path):
    path = tmp_path / "h.json"
    record = {
        "question": "Where?",
        "answer": "here",
        "type": "bridge",
        "level": "easy",
        "supporting_facts": [["T0", 0], ["T1", 0]],
        "context": [[f"T{n}", [f"S{n}."]] for n in range(3)],
    }
    path.write_text(json.dumps([{**record, "_id": str(n)} for n in range(3)]))
    trained, held_out = load_samples(DataRecipe(task="hotpotqa", file=path, held_out=1), 0)
    assert (len(trained), len(held_out)) == (2, 1)
    assert "T1: S1." in trained[0].context


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"data": {"task": "jsonl"}}, "needs a file"),
        ({"data": {"file": "x"}}, "takes no file"),
        ({"stepps": 3}, "stepps"),
        ({"clip": 0}, "clip"),
    ],
)
def test_wrong_recipes_are_refused(changes, what):
    with pytest.raises(ValueError, match=what):
        recipe(**changes)


@pytest.mark.parametrize("name", [n for n in shipped("configs") if n.startswith("train/")])
def test_the_recipes_that_ship_are_recipes(name):
    path = find(f"configs/{name}.yaml")
    assert path is not None
    assert load_config(path, Recipe).adapter.split("_")[0] in name


def test_shipped_recipes_ask_as_the_agents_of_the_workflow_do():
    data = load_config(find("configs/train/c2c-smollm2-135m-26.yaml"), Recipe).data
    workflow = load_workflow("private_facts")
    read, answer = (workflow.agents[workflow.nodes[name].agent] for name in ("read", "answer"))
    assert (data.sender_system, data.receiver_system) == (read.system, answer.system)
    prompt = workflow.nodes["read"].prompt
    assert str(prompt).startswith(data.read.removesuffix("{context}"))
