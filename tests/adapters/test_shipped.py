"""The bundles that ship: small, whole, found for their pairs, and they change what a receiver stands on."""

from __future__ import annotations

import pytest
import torch

from agentflow.adapters.bundle import FOLDER, WEIGHTS, bundle_for, open_bundle
from agentflow.adapters.card import CARD
from agentflow.adapters.derive.student import Student
from agentflow.adapters.recipe import Recipe
from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.kv.cache import KVCache
from agentflow.models.chat import conversation, render
from agentflow.models.engine import Engine
from agentflow.models.loading import load_model, prepare
from agentflow.models.spec import resolve_model
from agentflow.workflow.library import library_root

SMALL, DERIVED = "smollm2-135m", "smollm2-135m-26"
SHIPPED = sorted(path.parent for path in (library_root() / FOLDER).glob(f"*/{CARD}"))
each = pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)


def drawn(geometry, length, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [
        [torch.randn(heads, length, (key, value)[n], generator=generator) for heads, key, value in geometry.layers]
        for n in (0, 1)
    ]
    return KVCache.stacked(*parts)


def test_all_of_them_take_15_megabytes_at_most():
    assert SHIPPED
    assert sum((folder / WEIGHTS).stat().st_size for folder in SHIPPED) <= 15e6


@each
def test_a_shipped_bundle_is_whole_and_says_how_it_was_made_and_what_it_measured(folder):
    bundle = open_bundle(folder)
    assert bundle.load().parameter_count > 0
    card = bundle.card
    assert card.license == "Apache-2.0"
    made = dict(card.recipe)
    assert made.pop("steps_done") > 0 or made["closed_form"]
    Recipe.model_validate(made)
    assert {"message", "receiver alone", "zero", "mismatched", "sender alone"} <= card.metrics.keys()


@pytest.mark.parametrize(("sender", "receiver"), [(SMALL, DERIVED), (DERIVED, DERIVED)])
def test_auto_finds_the_bundle_of_the_pair_by_its_models_names(sender, receiver, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))
    ends = resolve_model(sender), resolve_model(receiver)
    bundle = bundle_for("c2c", *ends)
    assert bundle is not None
    assert make_channel("c2c").check(*ends).fits
    adapter = bundle.load().ready(torch.device("cpu"), torch.float32)
    theirs, own = drawn(adapter.sender, 5, 0), drawn(adapter.receiver, 5, 1)
    partners = torch.tensor([-1, 0, 1, 4, -1])
    fused = adapter.decode(adapter.encode(theirs, ()), own, (), partners)
    changed = sum(not torch.equal(a[:, 1:4], b[:, 1:4]) for a, b in zip(fused.values, own.values, strict=True))
    assert changed > len(own.values) // 2
    for a, b in zip((*fused.keys, *fused.values), (*own.keys, *own.values), strict=True):
        assert torch.equal(a[:, [0, 4]], b[:, [0, 4]])


@pytest.mark.real
def test_the_pairs_bundle_reads_the_embedded_model_and_warns_where_the_receiver_has_other_digits():
    sender = Engine(load_model(resolve_model(SMALL)))
    raw = Student(sender.loaded.model, [20, 22, 24, 26]).whole()  # the derived model, before it was healed
    receiver = Engine(prepare(resolve_model(DERIVED), raw, sender.tokenizer))
    turns = conversation("", "Remember these facts: The locker code of Ann is 4711.")
    ids = tuple(render(sender.tokenizer, turns, reply=False))
    channel = make_channel("c2c")
    payload = channel.send(Message("read", turns, "", ids, sender.prefill(ids), sender), Task("", "", receiver))
    context = channel.receive(payload, receiver)
    assert any("made with other weights (" in told and "of the receiver" in told for told in context.warnings)
    assert not torch.equal(context.cache.values[-1], context.base.values[-1])
    assert context.stats["aligned_share"] == 1.0
