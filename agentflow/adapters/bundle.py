"""Adapters at rest: a folder with `adapter.json` (the card) and `adapter.safetensors` (the weights). No pickle."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from agentflow.adapters.base import Adapter, make_adapter
from agentflow.adapters.card import CARD, Card, End, read_card
from agentflow.errors import AdapterError
from agentflow.folders import cache_root
from agentflow.kv.disk import like_parent
from agentflow.kv.geometry import Geometry
from agentflow.models.spec import ModelSpec
from agentflow.workflow.library import library_root

WEIGHTS = "adapter.safetensors"
FOLDER = "configs/adapters"
_DTYPES = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True)
class Bundle:
    """A bundle whose card was read; its weights are still on disk."""

    folder: Path
    card: Card

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.folder.name

    def empty(self) -> Adapter:
        """The adapter without weights: its shapes, and what doesn't depend on them."""
        a = self.card
        ends = Geometry(a.sender.geometry), Geometry(a.receiver.geometry)
        try:
            return make_adapter(a.adapter, *ends, a.arguments, meta=True)
        except AdapterError as error:
            raise AdapterError(error.what, where=str(self.folder / CARD), fix=error.fix) from None

    def load(self) -> Adapter:
        """The adapter with its weights, in evaluation mode, on the CPU.

        Raises:
            AdapterError: the weights are missing, damaged, or not exactly those of the card's class and arguments.
        """
        path, adapter = self.folder / WEIGHTS, self.empty()
        _check_table(path, adapter)
        if _digest(path) != self.card.digest:
            raise AdapterError(
                "These weights were changed or damaged: their digest is not the card's.", where=str(path)
            )
        adapter.load_state_dict(load_file(path), strict=True, assign=True)
        return adapter.eval()


def open_bundle(folder: Path) -> Bundle:
    """The bundle in a folder; raises `AdapterError` where there is none."""
    return Bundle(folder, read_card(folder))


def save_bundle(
    folder: Path,
    adapter: Adapter,
    sender: End,
    receiver: End,
    *,
    recipe: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    license: str = "",
    dtype: torch.dtype | None = None,
) -> Bundle:
    """Write a bundle; a folder that is there is replaced as a whole.

    Args:
        dtype: of the weights in the file; by default as they are.

    Raises:
        AdapterError: it can't be written there.
    """
    tensors = {name: t.detach().to(dtype=dtype).cpu().contiguous() for name, t in adapter.state_dict().items()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            save_file(tensors, work / WEIGHTS)
            card = Card(
                adapter=adapter.name,
                arguments=adapter.arguments.model_dump(mode="json", exclude_defaults=True),
                sender=sender,
                receiver=receiver,
                digest=_digest(work / WEIGHTS),
                license=license,
                recipe=dict(recipe or {}),
                metrics=dict(metrics or {}),
            )
            (work / CARD).write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
            like_parent(work)
            _put_in_place(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise AdapterError(f"The bundle can't be written: {error.strerror}.", where=str(folder)) from None
    return Bundle(folder, card)


def find_bundle(ref: str | Path) -> Bundle:
    """The bundle in a folder, or the one of that name among those of the working folder, of this machine, and shipped.

    Raises:
        AdapterError: there is none, or it can't be used.
    """
    given = Path(ref).expanduser()
    places = [given, *(place / given for place in _places() if len(given.parts) == 1)]
    folder = next((place for place in places if (place / CARD).is_file()), None)
    if folder is None:
        known = sorted({bundle.name for bundle in bundles()})
        raise AdapterError(
            f"There is no adapter bundle '{ref}'.",
            fix=f"Name a bundle's folder, or one of: {', '.join(known)}." if known else "Name a bundle's folder.",
        )
    return open_bundle(folder)


def bundles() -> list[Bundle]:
    """Every bundle that can be found by name; folders whose card can't be read are left out."""
    found = []
    for place in dict.fromkeys(place.resolve() for place in _places()):
        for path in sorted(place.glob(f"*/{CARD}")):
            try:
                found.append(open_bundle(path.parent))
            except AdapterError:
                continue
    return found


def bundle_for(adapter: str, sender: ModelSpec, receiver: ModelSpec) -> Bundle | None:
    """The first bundle of an adapter class that was made for this pair; None where there is none."""
    for bundle in bundles():
        card = bundle.card
        if card.adapter == adapter and card.sender.same_source(sender) and card.receiver.same_source(receiver):
            return bundle
    return None


def _places() -> list[Path]:
    return [Path(FOLDER), cache_root() / "adapters", library_root() / FOLDER]


def _check_table(path: Path, adapter: Adapter) -> None:
    """Refuse a file whose names, shapes or number formats are not the adapter's, before its numbers are read."""
    wanted = {name: list(t.shape) for name, t in adapter.state_dict().items()}
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            shapes = {name: part.get_shape() for name, part in found.items()}
            formats = {name: part.get_dtype() for name, part in found.items()}
    except FileNotFoundError:
        raise AdapterError("The bundle has no weights.", where=str(path)) from None
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"The bundle's weights can't be read: {error}.", where=str(path)) from None
    missing, extra = sorted(wanted.keys() - shapes.keys()), sorted(shapes.keys() - wanted.keys())
    if missing or extra:
        what = f"'{missing[0]}' is missing" if missing else f"'{extra[0]}' is not one of its tensors"
        raise AdapterError(f"The weights are not those of the card's adapter: {what}.", where=str(path))
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise AdapterError(
                f"'{name}' has the shape {shapes[name]}; the card's adapter has {shape} there.", where=str(path)
            )
        if formats[name] not in _DTYPES:
            raise AdapterError(
                f"'{name}' has the number format {formats[name]}, which no adapter has.", where=str(path)
            )


def _put_in_place(work: Path, folder: Path) -> None:
    """Give a finished folder its name; the one that has it is moved away first."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    if folder.exists():
        folder.replace(old / "replaced")
    work.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
