"""What a derived model learns from: windows of text, and what its teacher computes of them.

Without a file the teacher writes the text itself: given the beginning of its chat template it writes what a user might
ask, and then answers it (the idea of Magpie, arXiv 2406.08464). That needs no data and keeps to what it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentflow.adapters.derive.recipe import Derivation
from agentflow.errors import AdapterError, DataError, ModelError, PayloadError
from agentflow.kv.payload import Turn
from agentflow.kv.sealed import read_sealed, write_sealed
from agentflow.models.chat import frames, render
from agentflow.models.embedded import Progress
from agentflow.models.engine import Engine
from agentflow.models.requests import Request, Sampling
from agentflow.tasks.reading import load_records

_TOGETHER = 32
"""Conversations that are written as one batch."""
_TOP_K = 50
CLOSE = 1e-4
"""Largest difference of two ways to compute the same logits, as a share of the largest of them."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """Windows of text, as the teacher sees them.

    Attributes:
        tokens: `(N, T)`.
        below: `(N, T, width)` the teacher's hidden states below the first layer that is left out.
        top: `(N, T, width)` those behind its last norm; its output embedding makes logits of them.
    """

    tokens: Tensor
    below: Tensor
    top: Tensor

    def part(self, numbers: Sequence[int]) -> Lesson:
        """Some of the windows."""
        at = torch.tensor(list(numbers))
        return Lesson(self.tokens[at], self.below[at], self.top[at])


def make_lesson(path: Path, mark: str, recipe: Derivation, teacher: Engine, first: int, progress: Progress) -> Lesson:
    """What is learnt from; kept in a file, so that it is made once.

    Args:
        mark: of the derivation that the file must belong to.
        first: the first layer that is left out.

    Raises:
        AdapterError: the file is of another derivation.
        DataError: too little text.
    """
    if path.exists():
        return _read(path, mark)
    rows = _from_file(recipe, teacher) if recipe.file else _written(recipe, teacher, progress)
    flat = [token for row in rows for token in row]
    count = len(flat) // recipe.window
    if count <= recipe.held_out:
        raise DataError(
            f"{len(flat):,} tokens make {count} windows of {recipe.window}; {recipe.held_out} of them are held out.",
            where=str(recipe.file) if recipe.file else None,
            fix="Give more text, or a smaller window.",
        )
    tokens = torch.tensor(flat[: count * recipe.window]).view(count, recipe.window)
    lesson = _computed(tokens, teacher.loaded.model, first, recipe.batch, progress)
    tensors = {"tokens": lesson.tokens.to(torch.int32), "below": lesson.below, "top": lesson.top}
    write_sealed(path, tensors, {"mark": mark}, None)
    return lesson


def _computed(tokens: Tensor, model: Any, first: int, size: int, progress: Progress) -> Lesson:
    below, top = [], []
    with torch.no_grad():
        for n in range(0, len(tokens), size):
            progress("reading with the teacher", n / len(tokens))
            ids = tokens[n : n + size].to(model.device)
            told = model(input_ids=ids, output_hidden_states=True, use_cache=False)
            below.append(told.hidden_states[first].cpu())
            top.append(told.hidden_states[-1].cpu())
            if n == 0:
                _check_head(model, told.logits, told.hidden_states[-1])
    return Lesson(tokens, torch.cat(below), torch.cat(top))


def _check_head(model: Any, logits: Tensor, top: Tensor) -> None:
    again = model.get_output_embeddings()(top)
    if float((again - logits).abs().max()) > CLOSE * float(logits.abs().max()):
        raise ModelError(
            f"No model can be derived from the type '{model.config.model_type}': it makes its logits in a way of its "
            "own (a cap, a scale)."
        )


def _written(recipe: Derivation, teacher: Engine, progress: Progress) -> list[list[int]]:
    """Conversations that the teacher writes, in its template."""
    tokenizer, longest = teacher.tokenizer, recipe.window // 2
    start = tokenizer(frames(tokenizer, [Turn("user", "")])[0], add_special_tokens=False)["input_ids"]
    if not start or not getattr(tokenizer, "chat_template", None):
        name = teacher.loaded.spec.model
        raise ModelError(f"'{name}' has no chat template to write in.", fix="Name a `file` of texts in the recipe.")
    rows = []
    for n in range(0, recipe.conversations, _TOGETHER):
        progress(f"writing {recipe.conversations} conversations", n / recipe.conversations)
        drawn = [
            Sampling(temperature=1.0, top_k=_TOP_K, seed=recipe.seed * 1_000_003 + k)
            for k in range(n, min(n + _TOGETHER, recipe.conversations))
        ]
        asked = teacher.generate([Request(tuple(start), max_new_tokens=longest, sampling=s) for s in drawn])
        turns = [(Turn("user", one.text.strip()),) for one in asked]
        prompts = [tuple(render(tokenizer, t, reply=True)) for t in turns]
        told = teacher.generate(
            [Request(p, max_new_tokens=longest, sampling=s) for p, s in zip(prompts, drawn, strict=True)]
        )
        rows += [
            render(tokenizer, (*t, Turn("assistant", one.text.strip())), reply=False)
            for t, one in zip(turns, told, strict=True)
        ]
    return rows


def _from_file(recipe: Derivation, teacher: Engine) -> list[list[int]]:
    assert recipe.file is not None
    tokenizer = teacher.tokenizer
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    texts = [record.text("text") for record in load_records(recipe.file)][: recipe.conversations]
    return [[*tokenizer(text, add_special_tokens=False)["input_ids"], *end] for text in texts]


def _read(path: Path, mark: str) -> Lesson:
    try:
        sealed = read_sealed(path, None)
        if sealed.content["mark"] != mark:
            raise AdapterError(
                "This folder holds another derivation: its recipe or its teacher differ.",
                where=str(path.parent),
                fix="Choose another --work, or remove the folder.",
            )
        return Lesson(sealed.tensors["tokens"].long(), sealed.tensors["below"], sealed.tensors["top"])
    except (PayloadError, LookupError, TypeError, ValueError) as error:
        raise AdapterError(f"What is learnt from can't be read: {error}.", where=str(path), fix="Remove it.") from None
