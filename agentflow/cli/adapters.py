"""`agentflow adapters`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from agentflow.cli.console import amount, out, plain, print_json
from agentflow.cli.options import FILE, Count, json_option
from agentflow.errors import AdapterError

if TYPE_CHECKING:
    from agentflow.adapters.bundle import Bundle
    from agentflow.adapters.card import End


@click.group("adapters")
def command() -> None:
    """Look after adapter bundles: trained maps from one model's cache to another's."""


@command.command("list", short_help="Which bundles there are, and for which models.")
@json_option
def list_bundles(as_json: bool) -> None:
    """List the bundles that ship, and those in `configs/adapters` here and in the cache folder.

    \b
    agentflow adapters list
    """
    from agentflow.adapters.bundle import bundles

    found = bundles()
    if as_json:
        print_json([_json(bundle) for bundle in found])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("bundle", "adapter", "sender", "receiver"):
        table.add_column(name, overflow="fold")
    for bundle in found:
        card = bundle.card
        table.add_row(*map(plain, (bundle.name, card.adapter, card.sender.model, card.receiver.model)))
    out.print(table if found else "no bundles")


@command.command("show", short_help="What a bundle is, and whether it is whole.")
@click.argument("bundle")
@json_option
def show(bundle: str, as_json: bool) -> None:
    """Read BUNDLE, a folder or a name, with its weights, and say what it is.

    \b
    agentflow adapters show c2c-smollm2
    """
    from agentflow.adapters.bundle import WEIGHTS, find_bundle

    found = find_bundle(bundle)
    adapter = found.load()
    size = (found.folder / WEIGHTS).stat().st_size
    if as_json:
        print_json({**_json(found), "parameters": adapter.parameter_count, "bytes": size})
        return
    card = found.card
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in (
        ("adapter", card.adapter),
        ("arguments", card.arguments),
        ("sender", f"{card.sender.model}: {adapter.sender}"),
        ("receiver", f"{card.receiver.model}: {adapter.receiver}"),
        ("parameters", f"{adapter.parameter_count:,}"),
        ("weights", amount(size)),
        ("license", card.license or "not said"),
        *((f"recipe.{key}", value) for key, value in card.recipe.items()),
        *((f"metrics.{key}", value) for key, value in card.metrics.items()),
    ):
        table.add_row(f"[dim]{plain(name)}[/]", plain(str(value)))
    out.print(table)


@command.command("import", short_help="Make a bundle of a published C2C folder.")
@click.argument("folder", type=FILE)
@click.option("--sender", required=True, metavar="MODEL", help="The model that the fusers read.")
@click.option("--receiver", required=True, metavar="MODEL", help="The model whose cache they change.")
@click.option("--out", "target", required=True, type=FILE, metavar="FOLDER", help="Where the bundle goes.")
@click.option("--license", "license_name", default="", metavar="NAME", help="The weights' licence, as SPDX writes it.")
def import_folder(folder: Path, sender: str, receiver: str, target: Path, license_name: str) -> None:
    """Make a bundle of FOLDER, which holds `projector_N.pt` and `.json` files as the authors of C2C publish them.

    Of the models only the configurations are needed, on this machine.

    \b
    agentflow adapters import final --sender Qwen/Qwen2.5-0.5B-Instruct --receiver Qwen/Qwen3-0.6B --out c2c-qwen
    """
    from agentflow.adapters.published import import_published

    made = import_published(folder, _end(sender), _end(receiver), target, license=license_name)
    out.print(f"bundle: {plain(str(made.folder))}", soft_wrap=True)


@command.command("export", short_help="Write a C2C bundle in the published form.")
@click.argument("bundle")
@click.option("--out", "target", required=True, type=FILE, metavar="FOLDER", help="A new folder.")
def export_bundle(bundle: str, target: Path) -> None:
    """Write BUNDLE, a folder or a name, as the authors of C2C publish theirs.

    \b
    agentflow adapters export c2c-smollm2 --out final
    """
    from agentflow.adapters.bundle import find_bundle
    from agentflow.adapters.published import export_published

    export_published(find_bundle(bundle), target)
    out.print(f"published form: {plain(str(target))}", soft_wrap=True)


@command.command("prune", short_help="Keep the layers of a bundle whose gates ask most for it.")
@click.argument("bundle")
@click.option("--layers", required=True, type=Count(), help="How many of the receiver's layers are still changed.")
@click.option("--out", "target", required=True, type=FILE, metavar="FOLDER", help="Where the smaller bundle goes.")
def prune_bundle(bundle: str, layers: int, target: Path) -> None:
    """Write BUNDLE, an `lcf` bundle of the variants aligned or pooled, with fewer layers.

    What it then scores has to be measured again: the card says only what it was made of.

    \b
    agentflow adapters prune lcf-aligned-smollm2-135m-26 --layers 9 --out lcf-aligned-9
    """
    from agentflow.adapters.bundle import find_bundle, save_bundle
    from agentflow.adapters.pruning import prune

    found = find_bundle(bundle)
    card, smaller = found.card, prune(found.load(), layers)
    recipe = {**card.recipe, "pruned_from": card.digest}
    made = save_bundle(target, smaller, card.sender, card.receiver, recipe=recipe, license=card.license)
    out.print(f"bundle: {plain(str(made.folder))} · {smaller.parameter_count:,} parameters", soft_wrap=True)


def _json(bundle: Bundle) -> dict[str, object]:
    return {"name": bundle.name, "folder": str(bundle.folder), **bundle.card.model_dump(mode="json")}


def _end(name: str) -> End:
    """A model known by its configuration alone."""
    from agentflow.adapters.card import End
    from agentflow.models.loading import local_geometry
    from agentflow.models.spec import resolve_model

    spec = resolve_model(name)
    geometry = local_geometry(spec)
    if geometry is None:
        raise AdapterError(
            f"The configuration of '{spec.model}' is not on this machine.",
            fix=f"Get it: agentflow models show {spec.model} --fetch.",
        )
    return End(model=spec.model, source=spec.source, revision=spec.revision, geometry=geometry.layers)
