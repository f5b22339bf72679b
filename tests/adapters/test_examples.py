"""Samples in tokens: where the message is found, contexts that differ, and what the receiver would read by itself."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from pydantic import ValidationError

from agentflow.adapters.base import make_adapter
from agentflow.adapters.examples import Sample, load_samples, make_examples
from agentflow.adapters.objective import contrast, divergence, objective
from agentflow.adapters.passes import Pair
from agentflow.adapters.reading import Readings
from agentflow.adapters.recipe import DataRecipe, Weights
from agentflow.errors import AdapterError, DataError
from agentflow.models.chat import anchor, conversation, render
from agentflow.tasks.registry import make_task
from tests.adapters.samples import randomised
from tests.tiny import tiny_engine

SAMPLE = Sample("The code of Ann is 4711.", "What is the code of Ann?", "4711", "Ann works in room 9.")


@pytest.fixture(scope="module")
def engines():
    return tiny_engine("llama"), tiny_engine("qwen2")


@pytest.mark.parametrize("place", ["text", "front", "turn"])
def test_what_the_receiver_computes_in_two_parts_is_a_whole_conversation(engines, place):
    (example,) = make_examples([SAMPLE], *engines, place)
    tokenizer = engines[1].tokenizer
    alone = conversation("", f"{SAMPLE.own_context}\n\n{SAMPLE.question}")
    behind = conversation("", f"{SAMPLE.own_context}\n\n{SAMPLE.question}", conversation("", SAMPLE.context))
    whole = {
        "text": render(tokenizer, behind, reply=True),
        "front": [*anchor(tokenizer), *render(tokenizer, alone, reply=True)],
        "turn": render(tokenizer, alone, reply=True),
    }
    assert [*example.own, *example.asked] == whole[place]
    assert [*example.taught[0], *example.taught[1]] == whole["text"]
    assert example.asked
    assert len(example.partners) == len(example.own)
    assert bool((example.partners >= 0).any()) == (place == "text")


def test_contexts_that_differ_come_from_lines_and_from_split_questions(tmp_path):
    lines = [
        {"context": "c", "question": "q", "answer": "a", "own_context": "o"},
        {"context": "c", "question": "q", "answer": "a"},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    trained, held_out = load_samples(DataRecipe(task="jsonl", file=path, held_out=1), 0)
    assert [held_out[0].own_context, trained[0].own_context] == ["o", ""]
    assert held_out[0].asked == "o\n\nq"
    assert trained[0].asked == "q"
    record = {
        "_id": "1",
        "question": "Which?",
        "answer": "A",
        "type": "bridge",
        "supporting_facts": [["T0", 0], ["T1", 0]],
        "context": [[f"T{n}", [f"Sentence {n}."]] for n in range(4)],
    }
    hotpot = tmp_path / "hotpot.json"
    hotpot.write_text(json.dumps([record, {**record, "_id": "2"}]))
    recipe = DataRecipe(task="hotpotqa", file=hotpot, held_out=1, settings={"setting": "split"})
    (sample,) = load_samples(recipe, 0)[0]
    assert {"T0", "T1"} == {name for name in ("T0", "T1") if (name in sample.context) != (name in sample.own_context)}


def test_of_several_instructions_one_is_drawn_for_each_text_and_half_of_its_facts_may_be_the_receivers():
    data = DataRecipe(
        settings={"facts": 5, "questions": 3}, train=60, sender_system=("Read.", ""), receiver_system="Say.", split=0.5
    )
    trained, held_out = load_samples(data, 0)
    texts = [trained[n : n + 3] for n in range(0, 180, 3)]
    assert all(len({(s.system, bool(s.own_context)) for s in text}) == 1 for text in texts)
    kinds = Counter((text[0].system, bool(text[0].own_context)) for text in texts)
    assert set(kinds) == {("Read.", False), ("Read.", True), ("", False), ("", True)}
    assert min(kinds.values()) > 5
    whole = load_samples(data.model_copy(update={"split": 0.0}), 0)[0]
    for sample, same in zip(trained, whole, strict=True):
        assert sample.answer in sample.context
        assert sample.answer not in sample.own_context
        together = f"{sample.context} {sample.own_context}".strip()
        assert sorted(together.replace(".", "").split()) == sorted(same.context.replace(".", "").split())
    assert load_samples(data, 0)[1] == held_out
    assert {s.own_system for s in trained} == {"Say."}


@pytest.mark.parametrize(
    "told", [{"sender_system": []}, {"split": 1.5}, {"task": "squad", "file": "squad.json", "split": 0.5}]
)
def test_data_that_can_have_no_such_contexts_are_refused(told):
    with pytest.raises(ValidationError, match=next(k for k in ("sender_system", "split") if k in told)):
        DataRecipe.model_validate(told)


def test_questions_of_squad_are_samples_with_their_paragraph_at_the_sender(tmp_path):
    asked = [
        {"id": f"q{n}", "question": f"Which {n}?", "answers": [{"text": f"A{n}"}, {"text": "B"}]} for n in range(3)
    ]
    article = {"title": "T", "paragraphs": [{"context": "Here it says A.", "qas": asked}, {"context": "x", "qas": []}]}
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "1.1", "data": [article]}))
    trained, held_out = load_samples(DataRecipe(task="squad", file=path, held_out=1), 0)
    assert held_out == [Sample("T: Here it says A.", "Which 0?", "A0")]
    assert [s.answer for s in trained] == ["A1", "A2"]
    split = DataRecipe(task="squad", file=path, held_out=1, settings={"paragraphs": 2, "setting": "split"})
    assert {(s.context, s.own_context) for s in load_samples(split, 0)[0]} == {("T: Here it says A.", "T: x")}


def test_a_conversation_that_comes_again_is_not_computed_again(engines):
    readings = Readings(engines[0], budget=1)
    (first,) = readings.of([(1, 2, 3)])
    assert readings.of([(1, 2, 3)])[0] is first
    readings.of([(4, 5)])  # beyond the budget: the first goes
    again = readings.of([(1, 2, 3)])[0]
    assert again is not first
    assert torch.equal(again.keys[0], first.keys[0])


def test_the_divergence_is_that_of_the_definition_and_nothing_between_equals():
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 11).double()
    p, q = a.softmax(-1), b.softmax(-1)
    assert float(divergence(a, b)) == pytest.approx(float((p * (p / q).log()).sum(-1).mean()))
    assert float(divergence(a, a)) == pytest.approx(0, abs=1e-12)


def test_the_objective_is_the_weighted_sum(engines):
    samples = [SAMPLE, Sample("The code of Bob is 1234.", "What is the code of Bob?", "1234")]
    pair, examples = Pair(*engines), make_examples(samples, *engines, "front")

    def alone(theirs, own, ropes, partners):
        return own

    both = objective(pair, alone, examples, Weights(likelihood=0.5, kl=2.0))
    answered = pair.answer(alone, examples)
    expected = 0.5 * answered.losses.mean() + 2 * divergence(pair.taught(examples), answered.logits)
    torch.testing.assert_close(both, expected)
    assert float(divergence(pair.taught(examples), answered.logits)) > 0


def test_a_mismatched_message_is_never_of_the_same_conversation(engines):
    twice = [SAMPLE, Sample(SAMPLE.context, "And whose?", "Ann")]
    with pytest.raises(DataError, match="one conversation"):
        Pair(*engines).measure(None, make_examples(twice, *engines, "front"), "mismatched", size=2)


def test_samples_are_asked_as_the_agents_of_a_workflow_are(engines):
    told = {"read": "Remember: {context}", "sender_system": "Read.", "receiver_system": "Answer."}
    data = DataRecipe(settings={"facts": 1, "questions": 1}, train=1, held_out=1, **told)
    (sample,) = load_samples(data, 0)[0]
    assert sample.context.startswith("Remember: The locker code of ")
    (example,) = make_examples([sample], *engines)
    turns = conversation("Read.", sample.context)
    assert list(example.sender) == render(engines[0].tokenizer, turns, reply=False)
    whole = render(engines[1].tokenizer, conversation("Answer.", sample.question, turns), reply=True)
    assert [*example.own, *example.asked] == whole
    (alone,) = make_examples([sample], *engines, "turn")
    own = render(engines[1].tokenizer, conversation("Answer.", sample.question), reply=True)
    assert [*alone.own, *alone.asked] == own
    with pytest.raises(ValueError, match="says nowhere"):
        DataRecipe(read="Remember.")


def test_generated_items_of_a_training_are_none_of_a_comparison():
    task = make_task("private_facts", {"facts": 1, "questions": 1})
    compared = {item.inputs["facts"][0] for seed in range(4) for item in task.items(data=None, limit=50, seed=seed)}
    for seed in range(2):
        trained, held_out = load_samples(DataRecipe(settings={"facts": 1, "questions": 1}, train=50), seed)
        assert not compared & {sample.context for sample in (*trained, *held_out)}
        assert not {s.context for s in trained} & {s.context for s in held_out}


def test_a_contrastive_loss_is_infonce_over_the_strangers_of_a_batch():
    torch.manual_seed(0)
    likeness = torch.randn(3, 3).double()
    found = contrast(likeness, ["a", "b", "a"])
    expected = 0.0
    for n, rivals in enumerate(([0, 1], [0, 1, 2], [1, 2])):  # the other message of its own text is no rival
        shares = (likeness[n, rivals] / 0.1).exp()
        expected -= float(((likeness[n, n] / 0.1).exp() / shares.sum()).log()) / 3
    assert float(found) == pytest.approx(expected)


def test_what_a_message_adds_is_compared_with_what_its_reader_knows(engines):
    samples = [SAMPLE, Sample("The code of Bob is 1234.", "What is the code of Bob?", "1234")]
    pair, examples = Pair(*engines), make_examples(samples, *engines, "turn")
    marks = [e.fingerprint.geometry for e in engines]
    made = randomised(make_adapter("lcf_delta", *marks, {"d_z": 4, "width": 8})).train()
    likeness = pair.likeness(made, examples)
    assert likeness.shape == (2, 2)
    assert float(likeness.detach().abs().max()) <= 1 + 1e-5
    weights = Weights(likelihood=0.0, contrastive=2.0)
    loss = objective(pair, made, examples, weights)
    torch.testing.assert_close(loss, 2 * contrast(likeness, [e.sender for e in examples]))
    loss.backward()
    assert bool(made.encoder[1].weight.grad.abs().sum() > 0)
    with pytest.raises(AdapterError, match="'lcf_mapped' has no contrastive loss"):
        objective(pair, make_adapter("lcf_mapped", *marks).eval(), examples, weights)
