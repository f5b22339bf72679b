"""The C2C fuser: sizes by the paper, equal to its formulas, shut at first, with gradients where they belong."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoConfig

from agentflow.adapters.base import Layers, make_adapter
from agentflow.errors import AdapterError
from agentflow.kv.cache import KVCache
from agentflow.kv.geometry import Geometry
from agentflow.models.loading import geometry_of

QWEN25_05B = geometry_of(
    AutoConfig.for_model("qwen2", hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)
)
QWEN3_06B = geometry_of(
    AutoConfig.for_model(
        "qwen3", hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128
    )
)
LLAMA32_1B = geometry_of(
    AutoConfig.for_model(
        "llama", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64
    )
)

SENDER = Geometry(((2, 6, 6),) * 3)
RECEIVER = Geometry(((3, 4, 4),) * 4)


def fuser(**arguments):
    torch.manual_seed(0)
    made = make_adapter("c2c", SENDER, RECEIVER, {"width": 16, **arguments})
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return made.double().eval()


def cache(geometry, length=7, seed=0):
    torch.manual_seed(seed)
    shapes = [(h, length, d) for h, d, _ in geometry.layers]
    return KVCache.stacked(*([torch.randn(s, dtype=torch.float64) for s in shapes] for _ in range(2)))


def set_gates(made, value):
    with torch.no_grad():
        for one in (*made.keys, *made.values):
            one.gate.fill_(value)
    return made.eval()


@pytest.mark.parametrize(
    ("sender", "receiver", "count"),
    [(QWEN25_05B, QWEN3_06B, 477_848_056), (LLAMA32_1B, QWEN3_06B, 499_868_152), (QWEN3_06B, QWEN3_06B, 529_228_280)],
    ids=["qwen2.5-0.5b to qwen3-0.6b", "llama-3.2-1b to qwen3-0.6b", "qwen3-0.6b to itself"],
)
def test_the_published_sizes_follow_from_configurations_alone(sender, receiver, count):
    made = make_adapter("c2c", sender, receiver, meta=True)
    assert made.parameter_count == count
    assert {p.device.type for p in made.parameters()} == {"meta"}


def test_the_width_is_a_setting():
    wide, narrow = (make_adapter("c2c", SENDER, RECEIVER, {"width": w}, meta=True).parameter_count for w in (32, 8))
    assert narrow < wide / 4


# -- the formulas, written out once more with plain arithmetic -------------------------------------------------


def feed_forward(x, weights, name):
    scale = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)
    inner = (scale * weights[f"{name}.norm.weight"]) @ weights[f"{name}.up.weight"].T
    gelu = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
    return x + gelu @ weights[f"{name}.down.weight"].T


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def plain(weights, sender, receiver, depth):
    """One layer's keys or values: `sender (Hs, T, ds)`, `receiver (Hr, T, dr)`, token by token and head by head."""
    heads, length, dim = receiver.shape
    out = receiver.clone()
    for t in range(length):
        token = torch.cat([*sender[:, t], *receiver[:, t]])
        hidden = feed_forward(linear(token, weights, "join"), weights, "shared")
        weight = 1 / (1 + torch.exp(-linear(feed_forward(hidden, weights, "weight_block"), weights, "weight")))
        for n in range(depth):
            hidden = feed_forward(hidden, weights, f"blocks.{n}")
        projected = linear(hidden, weights, "project")
        for h in range(heads):
            gate = 1.0 if weights["gate"] > 0 else 0.0
            out[h, t] += gate * weight[h] * projected[h * dim : (h + 1) * dim]
    return out


@pytest.mark.parametrize(
    "arguments", [{}, {"depth": 2, "ffn_width": 24}, {"layers": "depth"}, {"layers": (2, 0, 1, 1)}]
)
def test_it_equals_its_formulas(arguments):
    made = set_gates(fuser(**arguments), 1.0)
    with torch.no_grad():
        made.keys[2].gate.fill_(-0.1)
    made.eval()
    sender, receiver = cache(SENDER), cache(RECEIVER, seed=1)
    fused = made.decode(made.encode(sender, ()), receiver, (), torch.arange(7))
    for n, source in enumerate(made.pairs):
        for found, fusers, theirs, own in (
            (fused.keys[n], made.keys, sender.keys[source], receiver.keys[n]),
            (fused.values[n], made.values, sender.values[source], receiver.values[n]),
        ):
            expected = plain(fusers[n].state_dict(), theirs, own, made.arguments.depth)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
            assert torch.equal(found, own) == (fusers is made.keys and n == 2)


def test_an_adapter_at_initialisation_leaves_the_receivers_cache_as_it_is():
    made = make_adapter("c2c", SENDER, RECEIVER, {"width": 16}).double().eval()
    receiver = cache(RECEIVER, seed=1)
    fused = made.decode(made.encode(cache(SENDER), ()), receiver, (), torch.arange(7))
    assert all(
        torch.equal(a, b) for a, b in zip(fused.keys + fused.values, receiver.keys + receiver.values, strict=True)
    )


def test_shut_gates_change_nothing_bit_by_bit_even_where_the_message_is_no_number():
    made = set_gates(fuser(), -3.0)
    sender, receiver = cache(SENDER), cache(RECEIVER, seed=1)
    receiver.keys[0][0, 0, 0] = -0.0
    for tensor in (*sender.keys, *sender.values):
        tensor.fill_(float("nan"))
    fused = made.decode(made.encode(sender, ()), receiver, (), torch.arange(7))
    for a, b in zip(fused.keys + fused.values, receiver.keys + receiver.values, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    added = made.added(Layers.of(sender), Layers.of(receiver))
    assert all(torch.equal(t, torch.zeros_like(t)) for t in (*added.keys, *added.values))


def test_positions_are_fused_with_their_partners_and_stay_without_one():
    made = set_gates(fuser(), 1.0)
    sender, receiver = cache(SENDER, 9), cache(RECEIVER, 5, seed=1)
    partners = torch.tensor([3, -1, 3, 8, -1])
    fused = made.decode(made.encode(sender, ()), receiver, (), partners)
    moved = sender.select(torch.tensor([3, 8]))
    direct = made.decode(made.encode(moved, ()), receiver.select(torch.tensor([2, 3])), (), torch.tensor([0, 1]))
    for n in range(4):
        assert torch.equal(fused.keys[n][:, [1, 4]], receiver.keys[n][:, [1, 4]])
        torch.testing.assert_close(fused.values[n][:, 2:4], direct.values[n])
    assert fused.positions is receiver.positions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("arguments", [{}, {"depth": 3, "ffn_width": 8}])
def test_inference_adds_what_training_adds_with_its_gate_open(arguments, dtype):
    made = set_gates(fuser(**arguments), 1.0).to(dtype)
    sender, receiver = cache(SENDER).to(dtype=dtype), cache(RECEIVER, seed=1).to(dtype=dtype)
    fused = made.decode(made.encode(sender, ()), receiver, (), torch.arange(7))
    added = made.added(Layers.of(sender), Layers.of(receiver))
    exact = 1e-5 if dtype == torch.float32 else 0.05
    for n in range(4):
        assert fused.keys[n].dtype == dtype
        torch.testing.assert_close(fused.keys[n], receiver.keys[n] + added.keys[n], atol=exact, rtol=exact)
        torch.testing.assert_close(fused.values[n], receiver.values[n] + added.values[n], atol=exact, rtol=exact)


def test_a_sender_that_has_read_more_is_fused_as_far_as_the_receiver_goes():
    made = set_gates(fuser(), 1.0)
    sender, receiver = cache(SENDER, 9), cache(RECEIVER, 5, seed=1)
    fused = made.decode(made.encode(sender, ()), receiver, (), torch.arange(5))
    cut = made.decode(made.encode(sender.select(torch.arange(5)), ()), receiver, (), torch.arange(5))
    assert all(torch.equal(a, b) for a, b in zip(fused.keys, cut.keys, strict=True))


def test_a_batch_is_its_rows_one_by_one():
    made = set_gates(fuser(), 1.0)
    rows = [(cache(SENDER, seed=s), cache(RECEIVER, seed=s + 5)) for s in range(3)]
    stack = [
        Layers(
            [torch.stack(k) for k in zip(*(r[end].keys for r in rows), strict=True)],
            [torch.stack(v) for v in zip(*(r[end].values for r in rows), strict=True)],
        )
        for end in (0, 1)
    ]
    together = made.added(*stack)
    for n, (sender, receiver) in enumerate(rows):
        alone = made.added(Layers.of(sender), Layers.of(receiver))
        for a, b in zip((*together.keys, *together.values), (*alone.keys, *alone.values), strict=True):
            torch.testing.assert_close(a[n], b)


def test_gradients_are_those_of_finite_differences():
    made = fuser(width=4, dropout=0.0)
    one = made.keys[0].train()
    sender, receiver = cache(SENDER, 2).keys[0], cache(RECEIVER, 2, seed=1).keys[0]

    def drawn(gate, weight, theirs):
        torch.manual_seed(3)  # the same draw of the gate each time
        changed = {"gate": gate, "project.weight": weight}
        return torch.func.functional_call(one, changed, (theirs, receiver, 0.7))

    inputs = one.gate.detach().clone(), one.project.weight.detach().clone(), sender.clone()
    assert torch.autograd.gradcheck(drawn, [t.requires_grad_() for t in inputs])


def test_gates_are_drawn_while_training_and_sharpen_as_the_temperature_falls():
    made = set_gates(fuser(), 0.0).train()
    sender, receiver = Layers.of(cache(SENDER, 400)), Layers.of(cache(RECEIVER, 400, seed=1))
    one = made.keys[1]

    def gates(temperature):
        return one._drawn_gate(torch.zeros(3, 400, 1, dtype=torch.float64), temperature)

    torch.manual_seed(0)
    soft, hard = gates(1.0).detach(), gates(0.001).detach()
    assert 0.4 < float(soft.mean()) < 0.6
    assert (
        float(((hard > 0.01) & (hard < 0.99)).double().mean())
        < 0.02
        < float(((soft > 0.01) & (soft < 0.99)).double().mean())
    )
    first, second = made.added(sender, receiver), made.added(sender, receiver)
    assert not torch.equal(first.keys[0], second.keys[0])


def test_dropout_acts_while_training_only():
    made = set_gates(fuser(dropout=0.5), 1.0)
    sender, receiver = cache(SENDER), cache(RECEIVER)
    block = made.keys[0].shared
    x = torch.randn(5, 16, dtype=torch.float64)
    assert torch.equal(block(x), block(x))
    assert not torch.equal(block.train()(x), block(x))
    made.eval()
    both = [made.decode(made.encode(sender, ()), receiver, (), torch.arange(7)).keys[0] for _ in range(2)]
    assert torch.equal(*both)


def test_foreign_codes_and_wrong_arguments_are_refused_by_name():
    made = set_gates(fuser(), 1.0)
    with pytest.raises(AdapterError, match="is not of this adapter's sender"):
        made.encode(cache(RECEIVER), ())
    codes = made.encode(cache(SENDER), ())
    del codes["layers.1.value"]
    with pytest.raises(AdapterError, match=r"nothing as layers\.1\.value"):
        made.decode(codes, cache(RECEIVER), (), torch.arange(7))
    for arguments, what in (
        ({"widht": 3}, "unknown setting 'widht'"),
        ({"width": 0}, "width"),
        ({"layers": (0, 1)}, r"2 layers \(0, 1\) don't join 4 to layers 0 to 2"),
        ({"layers": (0, 1, 2, 3)}, "don't join"),
    ):
        with pytest.raises(AdapterError, match=what):
            make_adapter("c2c", SENDER, RECEIVER, arguments)
    with pytest.raises(AdapterError, match="Did you mean 'c2c'"):
        make_adapter("c2", SENDER, RECEIVER)
