"""Which heads of a model look where an answer is: found on generated facts, without any data or labels by hand.

A reader holds facts, a question asks for one of them, and a head is as good as it ranks that fact's sentence above the
others (area under the ROC curve). Heads that do it are few and the same for other questions: retrieval heads
(arXiv 2404.15574). Those of SmolLM2 that are found here rank the supporting sentences of HotpotQA as well as heads that
were chosen there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentflow import __version__
from agentflow.channels.briefing_settings import LatentBriefingSettings
from agentflow.channels.selection import raw_scores, scene_of
from agentflow.errors import UserError
from agentflow.kv.keeping import by_segment
from agentflow.models.chat import conversation, render
from agentflow.models.engine import Engine
from agentflow.models.heads import HeadWeights
from agentflow.models.sentences import sentences_of
from agentflow.tasks.base import Item
from agentflow.tasks.private_facts import PrivateFacts, PrivateFactsSettings

KINDS = ("digits", "names", "text")
READER = "You read carefully and remember exact names, numbers and words."
WORKER = "Answer the question from the text above. Reply with the answer only, in a few words."


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was found.

    Attributes:
        auc: `(layers, heads)` mean area under the curve; 0.5 is chance.
        weights: equal ones for the best heads, zero for the rest.
    """

    auc: Tensor
    weights: HeadWeights

    def best(self) -> list[tuple[int, int, float]]:
        """The chosen heads as (layer, head, area), best first."""
        chosen = self.weights.weights.nonzero().tolist()
        return sorted(((layer, head, float(self.auc[layer, head])) for layer, head in chosen), key=lambda x: -x[2])


def calibrate_heads(
    engine: Engine,
    *,
    items: int = 90,
    facts: int = 16,
    heads: int = 8,
    seed: int = 1,
    progress: Callable[[], object] = lambda: None,
) -> Calibration:
    """Rank all heads of a model on generated facts and weigh the best ones alike.

    Args:
        items: questions asked, a third of them for each kind of fact.
        facts: sentences that a question chooses from.
        heads: how many are chosen.
        progress: called after every item.

    Raises:
        UserError: the model has fewer heads.
    """
    areas = []
    for item in _items(items, facts, seed):
        areas.append(_areas(engine, item))
        progress()
    auc = torch.stack(areas).mean(dim=0)
    if not 0 < heads <= auc.numel():
        raise UserError(f"{heads} heads can't be chosen: '{engine.loaded.spec.model}' has {auc.numel()}.")
    weights = torch.zeros(auc.numel())
    weights[auc.flatten().topk(heads).indices] = 1.0
    about = {
        "method": f"the {heads} best of {auc.numel()} heads by the area under the curve, on generated facts",
        "items": items,
        "facts": facts,
        "seed": seed,
        "agentflow": __version__,
    }
    loaded = engine.loaded
    found = HeadWeights(weights.reshape(auc.shape), loaded.spec.source, loaded.fingerprint.weights, about)
    return Calibration(auc, found)


def _items(count: int, facts: int, seed: int) -> list[Item]:
    share = -(-count // len(KINDS))
    tasks = [PrivateFacts(PrivateFactsSettings(facts=facts, questions=1, kind=kind)) for kind in KINDS]
    made = [task.items(data=None, limit=share, seed=seed) for task in tasks]
    return [item for group in zip(*made, strict=True) for item in group][:count]


def _areas(engine: Engine, item: Item) -> Tensor:
    """`(layers, heads)`: the share of the other sentences that a head looks at less than at the answer's."""
    asked, answer = item.inputs["questions"][0], item.answers[0][0]
    turns = conversation(READER, "Remember these facts: " + " ".join(item.inputs["facts"]))
    token_ids = tuple(render(engine.tokenizer, turns, reply=False))
    scene = scene_of(engine, engine.prefill(token_ids), token_ids, turns, WORKER, asked)
    assert scene is not None
    settings = LatentBriefingSettings(head_weights="uniform")
    segments, texts = sentences_of(engine.tokenizer, scene.kept_ids)
    segments[: settings.sinks] = -1
    scores = by_segment(raw_scores(scene, settings), segments.to(scene.cache.keys[0].device)).cpu()
    # The first position of each sentence speaks for all of them.
    first = [int((segments == n).nonzero()[0]) for n in range(len(texts)) if bool((segments == n).any())]
    right = next(n for n, at in enumerate(first) if answer in texts[int(segments[at])])
    each = scores[..., first]
    others = torch.cat([each[..., :right], each[..., right + 1 :]], dim=-1)
    mine = each[..., right : right + 1]
    return (mine > others).float().mean(dim=-1) + 0.5 * (mine == others).float().mean(dim=-1)
