"""Calibration finds the heads that look at the answer's sentence, and says nothing about a model that has none."""

from __future__ import annotations

import pytest
import torch

from agentflow.errors import UserError
from agentflow.evaluation import calibration
from agentflow.evaluation.calibration import calibrate_heads
from agentflow.models.engine import Engine
from agentflow.models.heads import find_weights
from tests.tiny import tiny_engine


def test_the_same_seed_finds_the_same_heads_and_reports_every_item():
    done = []
    first = calibrate_heads(tiny_engine(), items=4, facts=5, heads=3, progress=lambda: done.append(1))
    again = calibrate_heads(tiny_engine(), items=4, facts=5, heads=3)
    assert len(done) == 4
    assert torch.equal(first.auc, again.auc)
    assert bool(((first.auc >= 0) & (first.auc <= 1)).all())
    assert first.weights.weights.sum() == 3
    chosen = first.auc[first.weights.weights > 0]
    assert chosen.min() >= first.auc[first.weights.weights == 0].max()
    assert [area for _, _, area in first.best()] == sorted(chosen.tolist(), reverse=True)


def test_a_head_that_looks_at_the_answer_and_nowhere_else_is_the_best(monkeypatch):
    """Scores are made up so that one head is right, one is wrong and the others are blind."""
    answers = iter([item.answers[0][0] for item in calibration._items(6, 5, 1)])

    def looking(scene, _settings):
        segments, texts = calibration.sentences_of(scene.engine.tokenizer, scene.kept_ids)
        answer = next(answers)
        right = torch.tensor([answer in texts[n] if n >= 0 else False for n in segments.tolist()])
        scores = torch.ones(4, 4, len(segments))
        scores[2, 1] += right.float()
        scores[0, 3] -= right.float()
        return scores

    monkeypatch.setattr(calibration, "raw_scores", looking)
    found = calibrate_heads(tiny_engine(), items=6, facts=5, heads=1)
    assert [(layer, head) for layer, head, _ in found.best()] == [(2, 1)]
    assert float(found.auc[2, 1]) == 1.0
    assert float(found.auc[0, 3]) == 0.0
    assert float(found.auc[1, 1]) == 0.5


def test_more_heads_than_there_are_can_not_be_chosen():
    with pytest.raises(UserError, match="has 16"):
        calibrate_heads(tiny_engine(), items=1, facts=3, heads=17)


@pytest.mark.real
def test_the_weights_that_ship_are_those_of_the_embedded_model():
    from agentflow.models.loading import load_model
    from agentflow.models.spec import resolve_model

    spec = resolve_model("smollm2-135m")
    engine = Engine(load_model(spec))
    shipped = find_weights(spec, engine.fingerprint)
    assert shipped is not None
    found = calibrate_heads(engine, items=6, heads=8)
    both = (found.weights.weights > 0) & (shipped.weights > 0)
    assert int(both.sum()) >= 5, "six items find most of the heads that ninety do"
    assert float(found.auc[shipped.weights > 0].min()) > 0.8
    assert float(found.auc.median()) < 0.75
