"""Latent Cache Flow: sizes by the paper, shut at first, equal to its formulas written out once more."""

from __future__ import annotations

import pytest
import torch

from agentflow.adapters.base import make_adapter
from agentflow.adapters.closed_form import Moments, principal, reduced
from agentflow.adapters.front import SHUT
from agentflow.adapters.pruning import prune
from agentflow.adapters.wire import pack, unpack
from agentflow.errors import AdapterError, PayloadError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.kv.rope import Rope
from tests.adapters.samples import randomised
from tests.adapters.test_c2c import QWEN3_06B, QWEN25_05B, feed_forward

VARIANTS = ["lcf_aligned", "lcf_pooled", "lcf_slots", "lcf_mapped", "lcf_delta"]
SENDER = Geometry(((2, 6, 6),) * 3)
RECEIVER = Geometry(((3, 4, 4),) * 4)
ROPES = [[Rope(0.3 ** torch.arange(3).double())] * 3, [Rope(0.3 ** torch.arange(2).double())] * 4]
SMALL = {
    "lcf_aligned": {"width": 8},
    "lcf_pooled": {"width": 8, "span": 4},
    "lcf_slots": {"slots": 3, "width": 8},
    "lcf_mapped": {"neighbours": 1},
    "lcf_delta": {"d_z": 8, "width": 8},
}


def cache(geometry, length=7, seed=0):
    torch.manual_seed(seed)
    shapes = [(h, length, d) for h, d, _ in geometry.layers]
    return KVCache.stacked(*([torch.randn(s) for s in shapes] for _ in range(2)))


def make(name, **arguments):
    torch.manual_seed(0)
    return make_adapter(name, SENDER, RECEIVER, {**SMALL[name], **arguments})


def sent(adapter, sender, receiver, partners=None):
    partners = torch.full((len(receiver),), -1) if partners is None else partners
    return adapter.decode(adapter.encode(sender, ROPES[0]), receiver, ROPES[1], partners)


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("lcf_aligned", {"width": 128}, 19_393_528),
        ("lcf_aligned", {"width": 256}, 53_409_272),
        ("lcf_pooled", {"width": 128}, 25_873_400),
    ],
)
def test_the_published_sizes_follow_from_configurations_alone(name, arguments, count):
    assert make_adapter(name, QWEN25_05B, QWEN3_06B, arguments, meta=True).parameter_count == count


def test_nine_of_the_layers_are_13_megabytes():
    arguments = {"width": 128, "only": list(range(19, 28))}
    made = make_adapter("lcf_aligned", QWEN25_05B, QWEN3_06B, arguments, meta=True)
    assert 12e6 < made.parameter_count * 2 < 13e6


def test_delta_is_less_than_a_twentieth_of_c2c():
    c2c, delta = (make_adapter(name, QWEN25_05B, QWEN3_06B, meta=True).parameter_count for name in ("c2c", "lcf_delta"))
    assert delta < 0.05 * c2c
    made = make_adapter("lcf_delta", QWEN25_05B, QWEN3_06B, meta=True)
    assert sum(p.numel() for p in made.decoder.parameters()) < 200_000


@pytest.mark.parametrize("name", VARIANTS)
def test_an_adapter_at_initialisation_leaves_the_receivers_cache_as_it_is(name):
    made, receiver = make(name).eval(), cache(RECEIVER, seed=1)
    found = sent(made, cache(SENDER), receiver, torch.arange(7))
    assert len(found) == len(receiver)
    for a, b in zip(found.keys + found.values, receiver.keys + receiver.values, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_weight_has_a_part_in_training(name):
    made = randomised(make(name), gate=0.5).train()
    found = sent(made, cache(SENDER), cache(RECEIVER, seed=1), torch.arange(7))
    total = sum(t.square().sum() for t in (*found.keys, *found.values))
    if found.bias is not None:
        total = total + sum(b.sum() for b in found.bias)
    total.backward()
    without = [n for n, p in made.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert without == []


@pytest.mark.parametrize("name", VARIANTS)
def test_a_foreign_cache_and_foreign_codes_are_refused(name):
    made = randomised(make(name))
    with pytest.raises(AdapterError, match="not of this adapter's sender"):
        made.encode(cache(RECEIVER), ROPES[0])
    codes = made.encode(cache(SENDER), ROPES[0])
    first = next(iter(codes))
    for wrong in ({}, {**codes, first: codes[first][:, :-1]}, {**codes, first: codes[first].long()}):
        with pytest.raises(AdapterError, match=f"as {first}; this adapter reads"):
            made.decode(wrong, cache(RECEIVER), ROPES[1], torch.arange(7))


# -- the formulas, written out once more, token by token, in float64 -------------------------------------------


def ready(name, **arguments):
    return randomised(make(name, **arguments), gate=1.0).double()


def double(one):
    return KVCache.stacked([k.double() for k in one.keys], [v.double() for v in one.values])


def linear(x, weights, name):
    prefix = f"{name}." if name else ""
    bias = weights.get(f"{prefix}bias")
    return x @ weights[f"{prefix}weight"].T + (0 if bias is None else bias)


def rotated(vector, position, frequencies):
    """One head's key, turned to a position: pairs are the two halves."""
    half = len(vector) // 2
    out = vector.clone()
    for n in range(half):
        angle = position * frequencies[n]
        a, b = vector[n], vector[half + n]
        out[n] = a * torch.cos(angle) - b * torch.sin(angle)
        out[half + n] = b * torch.cos(angle) + a * torch.sin(angle)
    return out


def state(one, layer, t, frequencies=None):
    """All numbers of a position: keys, taken back to position 0 where frequencies are given, then values."""
    keys = [k if frequencies is None else rotated(k, -t, frequencies) for k in one.keys[layer][:, t]]
    return torch.cat([*keys, *one.values[layer][:, t]])


def weighted(added, weight, heads):
    gate = 1 / (1 + torch.exp(-weight))
    return torch.stack([gate[h] * part for h, part in enumerate(added.chunk(heads))])


def bottleneck(hidden, weights):
    for n in range(2):
        hidden = feed_forward(hidden, weights, f"blocks.{n}")
    of_keys, of_values = hidden.chunk(2)
    return (
        weighted(linear(of_keys, weights, "keys"), linear(hidden, weights, "key_weight"), 3),
        weighted(linear(of_values, weights, "values"), linear(hidden, weights, "value_weight"), 3),
    )


def test_aligned_equals_its_formulas():
    made = ready("lcf_aligned", only=[1, 3])
    with torch.no_grad():
        made.gates.gate[0, 1] = -1.0  # the values of layer 1 stay
    made.eval()
    sender, receiver = double(cache(SENDER)), double(cache(RECEIVER, 6, seed=1))
    partners = torch.tensor([2, -1, 6, 0, 0, 5])
    found = sent(made, sender, receiver, partners)
    for at, (n, source) in enumerate([(1, 0), (3, 2)]):
        weights = made.layers[at].state_dict()
        keys, values = receiver.keys[n].clone(), receiver.values[n].clone()
        for t, partner in enumerate(partners.tolist()):
            if partner >= 0:
                hidden = linear(state(sender, source, partner), weights, "theirs")
                added = bottleneck(hidden + linear(state(receiver, n, t), weights, "own"), weights)
                keys[:, t] += added[0]
                values[:, t] += 0 if at == 0 else added[1]
        torch.testing.assert_close(found.keys[n], keys, atol=1e-9, rtol=0)
        torch.testing.assert_close(found.values[n], values, atol=1e-9, rtol=0)
    for n in (0, 2):
        assert found.keys[n] is receiver.keys[n]


def attended(x, weights, name, heads):
    """A learnt query over rows `(T, width)`: multi-head attention, written out."""
    width = x.shape[1]
    inner, bias = weights[f"{name}.attention.in_proj_weight"], weights[f"{name}.attention.in_proj_bias"]
    q = inner[:width] @ weights[f"{name}.query"] + bias[:width]
    keys, values = (
        x @ inner[width : 2 * width].T + bias[width : 2 * width],
        x @ inner[2 * width :].T + bias[2 * width :],
    )
    dim, out = width // heads, []
    for h in range(heads):
        part = slice(h * dim, (h + 1) * dim)
        share = torch.softmax(keys[:, part] @ q[part] / dim**0.5, dim=0)
        out.append(share @ values[:, part])
    return linear(torch.cat(out), weights, f"{name}.attention.out_proj")


def test_pooled_equals_its_formulas():
    made = ready("lcf_pooled", heads=2).eval()
    sender, receiver = double(cache(SENDER, 10)), double(cache(RECEIVER, 5, seed=1))
    found = sent(made, sender, receiver)
    frequencies = [rope[0].inv_freq for rope in ROPES]
    for n, source in enumerate([0, 0, 1, 2]):
        weights = made.layers[n].state_dict()
        inner = {k.removeprefix("inner."): v for k, v in weights.items() if k.startswith("inner.")}
        rows = [linear(state(sender, source, t, frequencies[0]), inner, "theirs") for t in range(10)]
        spans = [attended(torch.stack(rows[i : i + 4]), weights, "within", 2) for i in (0, 4, 8)]
        summary = attended(torch.stack(spans), weights, "across", 2)
        mine = torch.stack([linear(state(receiver, n, t, frequencies[1]), inner, "own") for t in range(5)])
        own = attended(mine, weights, "own", 2)
        key, value = bottleneck(linear(torch.cat([summary, own]), weights, "join"), inner)
        for t in range(5):
            turned = torch.stack([rotated(k, t, frequencies[1]) for k in key])
            torch.testing.assert_close(found.keys[n][:, t], receiver.keys[n][:, t] + turned, atol=1e-6, rtol=0)
            torch.testing.assert_close(found.values[n][:, t], receiver.values[n][:, t] + value, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rank", [None, 5])
def test_mapped_equals_its_formulas(rank):
    made = ready("lcf_mapped", rank=rank, layers="terminal").eval()
    with torch.no_grad():
        made.gates.gate[2] = -1.0
    made.eval()
    sender, anchored = double(cache(SENDER)), double(cache(RECEIVER, 1, seed=1))
    found = sent(made, sender, anchored)
    assert len(found) == 7
    windows = [(0, 1), (0, 1), (0, 1, 2), (1, 2)]
    frequencies = [rope[0].inv_freq for rope in ROPES]
    for n, window in enumerate(windows):
        weights = made.maps.maps[n].state_dict()
        for t in range(1, 7):
            x = torch.cat([state(sender, layer, t, frequencies[0]) for layer in window])
            y = linear(x, weights, "") if rank is None else linear(linear(x, weights, "0"), weights, "1")
            keys, values = y[:12].chunk(3), y[12:].chunk(3)
            wanted = torch.stack([rotated(k, t, frequencies[1]) for k in keys])
            torch.testing.assert_close(found.keys[n][:, t], wanted, atol=1e-6, rtol=0)
            torch.testing.assert_close(found.values[n][:, t], torch.stack(values), atol=1e-6, rtol=0)
        assert torch.equal(found.keys[n][:, 0], anchored.keys[n][:, 0])
    assert [float(b[0, -1]) for b in found.bias] == [0.0, 0.0, SHUT, 0.0]
    assert [float(b[0, 0]) for b in found.bias] == [0.0] * 4


def test_slots_equal_their_formulas_and_a_short_text_is_sent_position_by_position():
    made = ready("lcf_slots", neighbours=0).eval()
    sender = double(cache(SENDER, 9))
    codes = made.encode(sender, ROPES[0])
    weights = made.pooling.state_dict()
    frequencies = ROPES[0][0].inv_freq
    rows = [torch.stack([state(sender, n, t, frequencies) for t in range(1, 9)]) for n in range(3)]
    seen = sum(linear(rows[n], weights, f"looks.{n}") for n in range(3))
    seen = seen / torch.sqrt(seen.square().mean(-1, keepdim=True) + torch.finfo(torch.float64).eps)
    seen = seen * weights["norm.weight"]
    for slot in range(3):
        score = []
        for t in range(8):
            distance = ((t + 0.5) / 8 * 3 - (slot + 0.5)) / torch.exp(weights["reach"][slot])
            score.append(weights["queries"][slot] @ seen[t] - 2 * distance**2)
        share = torch.softmax(torch.stack(score), dim=0)
        for n in range(3):
            torch.testing.assert_close(codes[f"layers.{n}"][slot], share @ rows[n], atol=1e-6, rtol=0)
    short = double(cache(SENDER, 4))
    assert {len(t) for t in made.encode(short, ROPES[0]).values()} == {3}
    torch.testing.assert_close(made.encode(short, ROPES[0])["layers.1"][2], state(short, 1, 3, frequencies))


@pytest.mark.parametrize("arguments", [{}, {"joint": 1.0}, {"relative": False}, {"threshold": None}])
def test_delta_equals_its_formulas(arguments):
    made = ready("lcf_delta", **arguments).eval()
    a, w = made.arguments, made.state_dict()
    sender, receiver = double(cache(SENDER)), double(cache(RECEIVER, 5, seed=1))
    found = sent(made, sender, receiver)
    frequencies = [rope[0].inv_freq for rope in ROPES]
    joined = []
    for t in range(7):
        parts = [
            (state(sender, n, t, frequencies[0]) - w[f"theirs.means.{n}"]) @ w[f"theirs.first.{n}"] for n in range(3)
        ]
        code = torch.cat(parts)
        if a.joint < 1:
            code = w["theirs.second"] @ (w["theirs.second"].T @ code)
        joined.append(code.chunk(3))

    def encoder(x):
        x = x / torch.sqrt(x.square().mean() + torch.finfo(torch.float64).eps) * w["encoder.0.weight"]
        return linear(torch.nn.functional.gelu(linear(x, w, "encoder.1")), w, "encoder.3")

    def message(x):
        return linear(torch.nn.functional.gelu(linear(encoder(x), w, "message.0")), w, "message.2")

    for n, source in enumerate([0, 1, 1, 2]):
        own = [state(receiver, n, t, frequencies[1]) for t in range(5)]
        summary = sum((x - w[f"own.means.{n}"]) @ w[f"own.first.{n}"] for x in own)
        known = torch.sigmoid(w["decay"][n]) * encoder(summary + w["layer"][n]) if a.relative else 0
        delta = torch.stack([message(parts[source] + w["layer"][n]) - known for parts in joined])
        offered = linear(delta, w, "key")
        for t in range(5):
            wanted = linear(own[t][:12], w, f"queries.{n}")
            share = torch.softmax(offered @ wanted / a.d_z**0.5, dim=0)
            heard = share @ linear(delta, w, "value")
            hidden = linear(torch.cat([heard, heard.new_zeros(1)]), w, "decoder.into")
            for block in range(2):
                x = hidden / torch.sqrt(hidden.square().mean() + torch.finfo(torch.float64).eps)
                x = x * w[f"decoder.blocks.{block}.0.weight"]
                x = linear(
                    torch.nn.functional.silu(linear(x, w, f"decoder.blocks.{block}.1")), w, f"decoder.blocks.{block}.3"
                )
                hidden = hidden + x
            change = linear(heard + linear(hidden, w, "decoder.out"), w, f"out.{n}") * torch.sigmoid(w["blend"][n])
            likeness = torch.cosine_similarity(wanted, offered.mean(0), dim=0)
            near = a.threshold is None or bool(likeness > a.threshold)
            expected = receiver.values[n][:, t] + (torch.stack(change.chunk(3)) if near else 0)
            torch.testing.assert_close(found.values[n][:, t], expected, atol=1e-6, rtol=0)
        assert found.keys[n] is receiver.keys[n]


# -- closed forms ----------------------------------------------------------------------------------------------


def test_ridge_is_that_of_the_normal_equations_and_rows_may_come_in_parts():
    torch.manual_seed(0)
    x, y = torch.randn(200, 9) + 3, torch.randn(200, 4) - 1
    y = y + x @ torch.randn(9, 4)
    whole, parts = Moments(9, 4), Moments(9, 4)
    whole.add(x, y)
    for n in range(0, 200, 50):
        parts.add(x[n : n + 50], y[n : n + 50])
    centred_x, centred_y = (x - x.mean(0)).double(), (y - y.mean(0)).double()
    gram = centred_x.T @ centred_x / 200
    penalty = 0.1 * gram.diagonal().mean()
    expected = torch.linalg.lstsq(gram + penalty * torch.eye(9).double(), centred_x.T @ centred_y / 200)[0].T
    for one in (whole, parts):
        weights, bias = one.solve(0.1)
        torch.testing.assert_close(weights, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(bias, y.mean(0).double() - expected @ x.mean(0).double(), atol=1e-4, rtol=0)
    with pytest.raises(AdapterError, match="no text to fit on"):
        Moments(2, 2).solve(0.1)


def test_a_lower_rank_is_the_best_of_that_rank_on_what_was_seen():
    torch.manual_seed(1)
    x = torch.randn(300, 6)
    y = x @ torch.randn(6, 2) @ torch.randn(2, 5)
    seen = Moments(6, 5)
    seen.add(x, y)
    weights, _ = seen.solve(1e-9)
    up, down = reduced(weights, seen, 2)  # the truth has rank 2: nothing is lost
    torch.testing.assert_close(up @ down, weights, atol=1e-4, rtol=0)
    lossy_up, lossy_down = reduced(weights, seen, 1)
    lost = (x.double() @ (weights - lossy_up @ lossy_down).T).square().sum()
    s = torch.linalg.svdvals(x.double() @ weights.T)
    torch.testing.assert_close(lost, s[1:].square().sum(), rtol=0.01, atol=0)


def test_main_directions_hold_most_of_the_variance():
    torch.manual_seed(2)
    x = torch.randn(500, 3) @ torch.randn(3, 8) + 0.01 * torch.randn(500, 8)
    seen = Moments(8, 0)
    seen.add(x, x[:, :0])
    directions = principal(seen.covariance(), 3)
    torch.testing.assert_close(directions.T @ directions, torch.eye(3).double(), atol=1e-6, rtol=0)
    centred = (x - x.mean(0)).double()
    kept = (centred @ directions).square().sum() / centred.square().sum()
    assert float(kept) > 0.999


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_codes_in_few_bits_are_what_they_were_to_half_a_step(bits):
    torch.manual_seed(0)
    codes = {"a": torch.randn(5, 100) * 3, "b": torch.randn(2, 7)}
    packed = pack(codes, bits)
    if bits == 16:
        assert {t.dtype for t in packed.values()} == {torch.float16}
        return
    found = unpack(packed, {"a": 100, "b": 7}, bits)
    for name, one in codes.items():
        step = (one.max() - one.min()) / (2**bits - 1)
        assert float((found[name] - one).abs().max()) <= step / 2 + 0.01
    for wrong in (
        {},
        {**packed, "a:codes": packed["a:codes"][:, :-1]},
        {**packed, "a:scale": packed["a:scale"].long()},
    ):
        with pytest.raises(PayloadError, match="codes 'a' can't be used"):
            unpack(wrong, {"a": 100, "b": 7}, bits)


@pytest.mark.parametrize("name", ["lcf_aligned", "lcf_pooled"])
def test_pruned_layers_stay_as_they_are_and_the_others_change_as_before(name):
    made = ready(name)
    with torch.no_grad():
        made.gates.gate.copy_(torch.tensor([[0.1, 2.0], [0.5, 0.5], [0.2, -1.0], [3.0, 0.1]]))
    made.eval()
    smaller = prune(made, 2)
    assert [n for n, _ in smaller.pairs] == [0, 3]
    sender, receiver = double(cache(SENDER)), double(cache(RECEIVER, seed=1))
    whole, part = (sent(one, sender, receiver, torch.arange(7)) for one in (made, smaller))
    for n in range(4):
        expected = whole if n in (0, 3) else receiver
        assert torch.equal(part.keys[n], expected.keys[n])
        assert torch.equal(part.values[n], expected.values[n])
    assert smaller.parameter_count < made.parameter_count
    with pytest.raises(AdapterError, match="It has 4 layers"):
        prune(made, 5)
    with pytest.raises(AdapterError, match="can't be left out"):
        prune(make("lcf_mapped"), 2)
