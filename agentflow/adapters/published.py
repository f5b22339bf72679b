"""The published form of C2C fusers: a folder of `projector_N.pt`, `projector_N.json` and `projector_config.json`.

As the authors' code writes them (https://github.com/thu-nics/C2C): one projector for each receiver layer, its tensors
as a PyTorch state dictionary, its constructor's arguments as JSON, and a table of which layer is joined to which. Of
the `.pt` files nothing but tensors is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from agentflow.adapters.base import make_adapter
from agentflow.adapters.bundle import Bundle, save_bundle
from agentflow.adapters.c2c import C2C
from agentflow.adapters.card import LARGEST, End
from agentflow.errors import AdapterError
from agentflow.kv.geometry import Geometry

TABLE = "projector_config.json"
CLASS = "C2CProjector"
_SIZES = {"width": ("hidden_dim", 1024), "ffn_width": ("intermediate_dim", 1024), "dropout": ("dropout", 0.1)}
_TRAINING = {"initial_temperature": 1.0, "final_temperature": 0.001, "anneal_steps": 1929}
_BLOCK = {"norm": "norm", "up": "w1", "down": "w2"}
_PARTS = {"join": "in", "weight": "scalar_head", "project": "proj_out"}
_BLOCKS = {"shared": "mlp1.blocks.0", "weight_block": "scalar_mlp2.blocks.0"}


def import_published(source: Path, sender: End, receiver: End, target: Path, *, license: str = "") -> Bundle:
    """Write the bundle of a published folder.

    Args:
        sender, receiver: the models that it was trained for; the folder doesn't name them.

    Raises:
        AdapterError: a file is missing, too large, or none of this form, or the projectors are of other models.
    """
    layers, numbers = _read_table(source / TABLE, len(receiver.geometry))
    found = {n: _read_json(source / f"projector_{n}.json") for n in sorted(set(numbers))}
    own = [_arguments(source / f"projector_{n}.json", raw, sender, receiver) for n, raw in found.items()]
    if any(a != own[0] for a in own) or len(found) != len(receiver.geometry):
        raise AdapterError("The projectors of one folder must be one a layer, and all of one size.", where=str(source))
    ends = Geometry(sender.geometry), Geometry(receiver.geometry)
    adapter = cast(C2C, make_adapter("c2c", *ends, {**own[0], "layers": layers}, meta=True))
    weights: dict[str, Tensor] = {}
    temperatures = []
    for layer, number in enumerate(numbers):
        names = _names(layer, adapter.arguments.depth)
        tensors = _read_tensors(source / f"projector_{number}.pt", adapter, names)
        temperatures.append(float(tensors.pop("gate_temperature", torch.tensor(_TRAINING["final_temperature"]))))
        weights |= {name: tensors[theirs] for name, theirs in names.items()}
    adapter.load_state_dict(weights, strict=True, assign=True)
    settings = next(iter(found.values()))["init_args"]
    recipe = {name: settings.get(name, default) for name, default in _TRAINING.items()}
    recipe["gate_temperature"] = temperatures
    return save_bundle(target, adapter, sender, receiver, recipe=recipe, license=license)


def export_published(bundle: Bundle, target: Path) -> None:
    """Write a `c2c` bundle in the published form, into a folder that is made for it.

    Raises:
        AdapterError: it is another adapter's, or the folder is there already.
    """
    adapter = bundle.load()
    if not isinstance(adapter, C2C):
        raise AdapterError(f"Only 'c2c' has a published form, not '{adapter.name}'.", where=str(bundle.folder))
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise AdapterError(f"This folder can't be made: {error.strerror}.", where=str(target)) from None
    recipe, state, sizes = bundle.card.recipe, adapter.state_dict(), adapter.arguments
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    cooled = recipe.get("gate_temperature") or [_TRAINING["final_temperature"]] * len(adapter.pairs)
    for layer, source in enumerate(adapter.pairs):
        (their_heads, their_dim, _), (heads, dim, _) = adapter.sender.layers[source], adapter.receiver.layers[layer]
        arguments = {
            "source_dim": their_dim,
            "target_dim": dim,
            "source_num_heads": their_heads,
            "target_num_heads": heads,
            "hidden_dim": sizes.width,
            "intermediate_dim": sizes.ffn_width or sizes.width,
            "num_layers": sizes.depth + 2,
            "dropout": sizes.dropout,
            "dtype": {"__type__": "torch.dtype", "value": dtype},
            **{name: recipe.get(name, default) for name, default in _TRAINING.items()},
        }
        _write_json(target / f"projector_{layer}.json", {"class": CLASS, "init_args": arguments})
        tensors = {theirs: state[name].clone() for name, theirs in _names(layer, sizes.depth).items()}
        tensors["gate_temperature"] = torch.tensor(cooled[layer], dtype=tensors["key_gate_logit"].dtype)
        torch.save(tensors, target / f"projector_{layer}.pt")
    table = {str(layer): [[source, layer]] for layer, source in enumerate(adapter.pairs)}
    _write_json(target / TABLE, {"0": {"1": table}})


def _names(layer: int, depth: int) -> dict[str, str]:
    """Our name of each tensor of a layer, and theirs."""
    found = {}
    blocks = _BLOCKS | {f"blocks.{n}": f"proj_mlp2.blocks.{n}" for n in range(depth)}
    for ours, part in ((f"keys.{layer}", "key"), (f"values.{layer}", "value")):
        found[f"{ours}.gate"] = f"{part}_gate_logit"
        for mine, theirs in _PARTS.items():
            found |= {f"{ours}.{mine}.{end}": f"{part}_{theirs}.{end}" for end in ("weight", "bias")}
        for mine, theirs in blocks.items():
            found |= {f"{ours}.{mine}.{a}.weight": f"{part}_{theirs}.{b}.weight" for a, b in _BLOCK.items()}
    return found


def _read_table(path: Path, layers: int) -> tuple[list[int], list[int]]:
    """For each receiver layer the sender's layer and the projector's number."""
    raw = _read_json(path)
    try:
        ((_, by_source),) = raw.items()
        ((_, by_layer),) = by_source.items()
        rows = [by_layer[str(n)] for n in range(layers)]
        if len(by_layer) != layers or any(len(row) != 1 for row in rows):
            raise ValueError
        pairs = [(int(source), int(number)) for ((source, number),) in rows]
    except (ValueError, OverflowError, TypeError, AttributeError, LookupError):
        raise AdapterError(
            f"This table does not join one sender's layer to each of the receiver's {layers}.", where=str(path)
        ) from None
    return [source for source, _ in pairs], [number for _, number in pairs]


def _arguments(path: Path, raw: Mapping[str, Any], sender: End, receiver: End) -> dict[str, Any]:
    """A projector's constructor's arguments as ours, if they are those of this pair."""
    given = raw.get("init_args")
    if raw.get("class") != CLASS or not isinstance(given, dict):
        raise AdapterError(f"This is no {CLASS}.", where=str(path))
    ends = (("source", sender, "sender"), ("target", receiver, "receiver"))
    for name, end, which in ends:
        heads, dim, _ = end.geometry[0]
        found = given.get(f"{name}_num_heads"), given.get(f"{name}_dim")
        if found != (heads, dim):
            raise AdapterError(
                f"This projector's {which} has {found[0]} KV heads of {found[1]}; '{end.model}' has {heads} of {dim}.",
                where=str(path),
            )
    sizes = {ours: given.get(theirs, default) for ours, (theirs, default) in _SIZES.items()}
    layers = given.get("num_layers", 3)
    return {**sizes, "depth": layers - 2 if isinstance(layers, int) else layers}


def _read_tensors(path: Path, adapter: C2C, names: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of one projector, exactly those of the adapter's layer."""
    wanted = {names[name]: t for name, t in adapter.state_dict().items() if name in names}
    most = sum(8 * t.numel() for t in wanted.values()) + (1 << 20)
    try:
        if path.stat().st_size > most:
            raise AdapterError(f"This file has more bytes than {CLASS} of its size can.", where=str(path))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except AdapterError:
        raise
    except FileNotFoundError:
        raise AdapterError("A projector's weights are missing.", where=str(path)) from None
    except Exception as error:  # noqa: BLE001 - torch.load raises what it likes
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AdapterError(f"This is no file of tensors ({what}).", where=str(path)) from None
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise AdapterError("This file holds something else than tensors by name.", where=str(path))
    differing = (wanted.keys() ^ found.keys()) - {"gate_temperature"}
    if differing:
        raise AdapterError(f"'{min(differing)}' is missing here, or is none of {CLASS}'s tensors.", where=str(path))
    if "gate_temperature" in found and found["gate_temperature"].numel() != 1:
        raise AdapterError("'gate_temperature' is no single number.", where=str(path))
    for name, like in wanted.items():
        if found[name].shape != like.shape or not found[name].is_floating_point():
            raise AdapterError(
                f"'{name}' has the shape {tuple(found[name].shape)} instead of {tuple(like.shape)}.", where=str(path)
            )
    return dict(found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            raise AdapterError(f"This file has more than {LARGEST:,} bytes.", where=str(path))
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AdapterError(f"This file can't be read: {error.strerror}.", where=str(path)) from None
    except (ValueError, RecursionError):
        raise AdapterError("This is no JSON.", where=str(path)) from None
    if not isinstance(found, dict):
        raise AdapterError("This JSON is no mapping.", where=str(path))
    return found


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
