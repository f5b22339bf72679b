"""Healing a model with layers left out: it learns to say what its teacher says (distillation, arXiv 1503.02531).

The loss is the Kullback-Leibler divergence of the two models' distributions, token by token. Below the first layer that
is left out nothing is learnt, and what the teacher computes is computed once. A killed derivation goes on from its last
checkpoint and ends with the weights of one that ran through.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from blake3 import blake3
from torch import Tensor

from agentflow.adapters.checkpoint import load_state, save_state
from agentflow.adapters.derive.folder import is_made, write_model
from agentflow.adapters.derive.recipe import Derivation
from agentflow.adapters.derive.student import Student
from agentflow.adapters.derive.texts import Lesson, make_lesson
from agentflow.errors import AdapterError
from agentflow.models.embedded import Progress, silent
from agentflow.models.engine import Engine

CHECKPOINT, LESSON = "checkpoint.safetensors", "lesson.safetensors"


@dataclass(frozen=True)
class Healed:
    """How near a student is to its teacher, on windows that it did not learn from; nats per token.

    Attributes:
        kl: divergence of the student's distribution from the teacher's.
        nll: of the text under the student; `teacher` under the teacher.
    """

    kl: float
    nll: float
    teacher: float


@dataclass(frozen=True)
class Step:
    """A step that is done.

    Attributes:
        loss: divergence from the teacher, nats per token.
        validated: the held-out windows, where they were measured after this step.
    """

    step: int
    steps: int
    loss: float
    rate: float
    tokens_per_second: float
    validated: Healed | None = None


def derive(
    recipe: Derivation,
    teacher: Engine,
    work: Path,
    target: Path,
    progress: Progress = silent,
    shown: Callable[[Step], None] = lambda _step: None,
) -> dict[str, Any]:
    """Make the model of a recipe, or go on where the last process stopped; its metrics.

    Args:
        work: folder of what is learnt from, and of the checkpoint.
        target: folder of the new model; what was made by the same recipe from the same weights is left as it is.

    Raises:
        ModelError: layers that the teacher doesn't have, or an architecture that can't be cut.
        AdapterError: the loss is no number any more, or a folder holds something else.
        DataError: too little text.
    """
    told = recipe.model_dump(mode="json"), asdict(teacher.fingerprint)
    mark = blake3(json.dumps(told, sort_keys=True).encode()).hexdigest()
    made = is_made(target, mark)
    if made is None:
        made = _Healing(recipe, mark, teacher, work, progress, shown).run(target)
    return made


class _Healing:
    """One derivation on its way."""

    def __init__(
        self,
        recipe: Derivation,
        mark: str,
        teacher: Engine,
        work: Path,
        progress: Progress,
        shown: Callable[[Step], None],
    ) -> None:
        self.recipe, self.mark, self.teacher, self.work, self.shown = recipe, mark, teacher, work, shown
        model = teacher.loaded.model
        self.student = Student(model, recipe.leave_out)
        lesson = make_lesson(work / LESSON, mark, recipe, teacher, self.student.first, progress)
        count = len(lesson.tokens)
        self.held_out = lesson.part(range(recipe.held_out))
        self.learnt = lesson.part(range(recipe.held_out, count))
        self.head = model.get_output_embeddings()
        self.device = teacher.loaded.device
        weights = self.student.learnt
        self.optimizer = torch.optim.AdamW(weights.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
        self.before = self._validate()
        self.state = load_state(work / CHECKPOINT, mark, weights, self.optimizer)

    def run(self, target: Path) -> dict[str, Any]:
        """Do the steps that are missing, and write the model."""
        recipe, state = self.recipe, self.state
        validated = None
        while state.step < recipe.steps:
            start = time.perf_counter()
            loss = self._step(state.step)
            state.step += 1
            rate = recipe.rate(state.step - 1)
            state.log.append({"step": state.step, "loss": loss, "rate": rate})
            last = state.step == recipe.steps
            validated = self._validate() if last or state.step % recipe.validate_every == 0 else None
            if validated is not None:
                state.log.append({"step": state.step, **asdict(validated)})
            if last or state.step % recipe.checkpoint_every == 0:
                save_state(self.work / CHECKPOINT, self.mark, state, self.student.learnt, self.optimizer)
            speed = recipe.batch * recipe.window / (time.perf_counter() - start)
            self.shown(Step(state.step, recipe.steps, loss, rate, speed, validated))
        after = validated or self._validate()
        metrics = {
            "held_out_tokens": self.held_out.tokens.numel(),
            "learnt_tokens": self.learnt.tokens.numel(),
            "teacher": {"nll": after.teacher},
            "before": {"nll": self.before.nll, "kl": self.before.kl},
            "after": {"nll": after.nll, "kl": after.kl},
        }
        write_model(target, self.student.whole(), self.teacher, recipe, self.mark, metrics, state.log)
        return metrics

    def _step(self, step: int) -> float:
        """One optimizer step; its loss."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        torch.manual_seed((recipe.seed << 32) + step)
        lesson = self.learnt.part(recipe.chosen(step, recipe.batch, len(self.learnt.tokens)))
        loss = _divergence(*self._said(lesson)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        found = float(loss.detach())
        if not found < float("inf"):
            raise AdapterError(f"The loss of step {step + 1} is {found}.", fix="Lower the learning rate.")
        torch.nn.utils.clip_grad_norm_(self.student.learnt.parameters(), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found

    def _said(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the student and of the teacher, each `(B, T, vocabulary)`."""
        student = self.student.logits(lesson.below.to(self.device)).log_softmax(dim=-1)
        with torch.no_grad():
            teacher = self.head(lesson.top.to(self.device)).log_softmax(dim=-1)
        return student, teacher

    def _validate(self) -> Healed:
        rows = []
        with torch.no_grad():
            for n in range(0, len(self.held_out.tokens), self.recipe.batch):
                lesson = self.held_out.part(range(n, min(n + self.recipe.batch, len(self.held_out.tokens))))
                student, teacher = self._said(lesson)
                next_ones = lesson.tokens[:, 1:, None].to(self.device)
                picked = [-said[:, :-1].gather(-1, next_ones).squeeze(-1) for said in (student, teacher)]
                kl = _divergence(student, teacher)
                rows.append(torch.stack([part.sum().cpu() for part in (kl, *picked)]))
        kl, nll, taught = torch.stack(rows).sum(dim=0).tolist()
        count = len(self.held_out.tokens)
        following = count * (self.recipe.window - 1)
        return Healed(kl / (count * self.recipe.window), nll / following, taught / following)


def _divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher || student) for each token, of log-probabilities."""
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=-1)
