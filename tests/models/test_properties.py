"""Engine and cache operations on random shapes, against fresh prefills."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.kv.fanin import concat
from agentflow.kv.rope import shift
from agentflow.models.blend import recompute
from agentflow.models.requests import Request, Sampling
from tests.tiny import tiny_engine, words

FEW = settings(max_examples=25, deadline=None)
lengths = st.integers(1, 24)


def close(a, b) -> bool:
    pairs = zip((*a.keys, *a.values), (*b.keys, *b.values), strict=True)
    return all(torch.allclose(x, y, atol=1e-4) for x, y in pairs)


@FEW
@given(
    family=st.sampled_from(["llama", "qwen2-yarn", "gemma3", "gpt-neox", "smollm3"]),
    cuts=st.lists(lengths, min_size=2, max_size=4),
)
def test_prefilling_in_any_pieces_equals_prefilling_at_once(family, cuts):
    engine = tiny_engine(family)
    ids = words(sum(cuts), len(cuts))
    cache, at = None, 0
    for n in cuts:
        cache = engine.prefill(ids[at : at + n], cache)
        at += n
    assert close(cache, engine.prefill(ids))


@FEW
@given(family=st.sampled_from(["llama", "mistral-sliding", "gemma2", "olmo2"]), a=lengths, b=lengths, c=lengths)
def test_joined_and_recomputed_caches_equal_a_fresh_prefill(family, a, b, c):
    engine = tiny_engine(family)
    parts = [words(n, seed) for seed, n in enumerate((a, b, c))]
    joined = concat([engine.prefill(p) for p in parts], engine.loaded.ropes)
    ids = [t for p in parts for t in p]
    assert close(recompute(engine, joined, ids, start=a, share=1.0), engine.prefill(ids))


@FEW
@given(n=lengths, there=st.integers(0, 300), data=st.data())
def test_shifting_and_selecting_commute_and_shifting_back_is_the_identity(n, there, data):
    engine = tiny_engine("qwen3")
    cache = engine.prefill(words(n))
    kept = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    ropes = engine.loaded.ropes
    assert close(shift(cache.select(kept), there, ropes), shift(cache, there, ropes).select(kept))
    assert close(shift(shift(cache, there, ropes), -there, ropes), cache)


@settings(max_examples=15, deadline=None)
@given(
    family=st.sampled_from(["llama", "mistral-sliding", "gemma3", "qwen3-moe"]),
    rows=st.lists(
        st.tuples(lengths, st.sampled_from(["none", "shared", "own", "compacted"]), st.integers(0, 6), st.booleans()),
        min_size=1,
        max_size=5,
    ),
)
def test_any_ragged_batch_equals_one_by_one(family, rows):
    engine = tiny_engine(family)
    shared = engine.prefill(words(19, 1))
    compacted = engine.prefill(words(16, 2))
    if not engine.has_windows:
        compacted = compacted.select(torch.tensor([0, 2, 5, 9, 15]))
    prefixes = {"none": None, "shared": shared, "compacted": compacted}
    requests = [
        Request(
            tuple(words(n, seed)),
            engine.prefill(words(7, seed + 50)) if kind == "own" else prefixes[kind],
            max_new_tokens=new,
            sampling=Sampling(1.2, 0.9, 40, seed) if hot else Sampling(),
            keep_cache=True,
        )
        for seed, (n, kind, new, hot) in enumerate(rows)
    ]
    for request, together in zip(requests, engine.generate(requests), strict=True):
        alone = engine.generate([request])[0]
        assert (together.token_ids, together.finish) == (alone.token_ids, alone.finish)
        assert close(together.cache, alone.cache)
        assert torch.equal(together.cache.positions, alone.cache.positions)
