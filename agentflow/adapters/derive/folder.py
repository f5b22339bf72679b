"""A derived model at rest: an ordinary folder with safetensors weights, and a card that says how it was made."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from agentflow.adapters.derive.recipe import Derivation
from agentflow.errors import AdapterError
from agentflow.kv.disk import like_parent
from agentflow.models.engine import Engine
from agentflow.models.quiet import quiet_transformers

CARD, NOTES = "README.md", "derivation.json"


def is_made(folder: Path, mark: str) -> dict[str, Any] | None:
    """The metrics of the model in a folder, if this derivation made it; None where there is no such folder.

    Raises:
        AdapterError: the folder holds something else.
    """
    if not folder.exists():
        return None
    try:
        notes = json.loads((folder / NOTES).read_text(encoding="utf-8"))
        metrics: dict[str, Any] = notes["metrics"]
        if notes["mark"] == mark:
            return metrics
        what = "This folder holds a model that another recipe or another teacher made."
    except (OSError, ValueError, LookupError, TypeError):
        what = "This folder holds something else than a derived model."
    raise AdapterError(what, where=str(folder), fix="Choose another --to, or remove it.")


def write_model(
    folder: Path,
    model: Any,
    teacher: Engine,
    recipe: Derivation,
    mark: str,
    metrics: Mapping[str, Any],
    log: Sequence[Mapping[str, float]],
) -> None:
    """Write a model with its tokenizer and its card; the folder is whole or absent.

    Raises:
        AdapterError: it can't be written there.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            with quiet_transformers():
                model.generation_config = teacher.loaded.model.generation_config
                model.save_pretrained(work)
                teacher.tokenizer.save_pretrained(work)
            told = recipe.model_dump(mode="json", exclude_defaults=True)
            notes = {"mark": mark, "recipe": told, "metrics": metrics, "log": log}
            (work / NOTES).write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
            (work / CARD).write_text(_card(teacher, recipe, metrics), encoding="utf-8")
            like_parent(work)
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise AdapterError(f"The model can't be written: {error.strerror}.", where=str(folder)) from None


def _card(teacher: Engine, recipe: Derivation, metrics: Mapping[str, Any]) -> str:
    spec = teacher.loaded.spec
    layers = ", ".join(map(str, recipe.leave_out))
    learnt = f"the texts of {recipe.file.name}" if recipe.file else "conversations that the original wrote"
    before, after = metrics["before"], metrics["after"]
    head = {"base_model": spec.source, "license": (recipe.license or spec.license).lower() or "other"}
    made = (
        f"Made of {spec.model} ({spec.source}) with `agentflow models derive`. The layers {layers} (from 0) are left "
        f"out, and those above the first of them learnt to say what the original says, on {learnt} "
        f"({metrics['learnt_tokens']:,} tokens, {recipe.steps} steps, seed {recipe.seed}). Below it everything is the "
        f"original's. Recipe, figures and losses: `{NOTES}`."
    )
    return "\n".join(
        [
            "---",
            *(f"{key}: {value}" for key, value in head.items()),
            "---",
            "",
            f"# {recipe.model}",
            "",
            fill(made, width=110),
            "",
            f"| {metrics['held_out_tokens']:,} held-out tokens | NLL | KL to the original |",
            "|---|---|---|",
            f"| the original | {metrics['teacher']['nll']:.3f} | 0 |",
            f"| layers left out | {before['nll']:.3f} | {before['kl']:.3f} |",
            f"| healed | {after['nll']:.3f} | {after['kl']:.3f} |",
            "",
        ]
    )
