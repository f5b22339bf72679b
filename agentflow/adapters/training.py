"""Training an adapter between two frozen models: only the answers' tokens count, and a killed training goes on.

Everything a step draws (its examples, the gates) is a function of the seed and the step's number, so that a training
which is killed and goes on from its last checkpoint ends with the weights of one that ran through.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from agentflow.adapters.base import Adapter, make_adapter
from agentflow.adapters.bundle import Bundle, save_bundle
from agentflow.adapters.card import End
from agentflow.adapters.checkpoint import load_state, save_state
from agentflow.adapters.examples import Example, load_samples, make_examples
from agentflow.adapters.fitting import FitLog, distinct, fit
from agentflow.adapters.matching import with_layers
from agentflow.adapters.objective import objective
from agentflow.adapters.passes import Measured, Message, Pair
from agentflow.adapters.recipe import Recipe
from agentflow.errors import AdapterError
from agentflow.kv.disk import whole_file, write_blocks
from agentflow.models.engine import Engine

CHECKPOINT, METRICS, FIT = "checkpoint.safetensors", "metrics.json", "closed_form.safetensors"


@dataclass(frozen=True)
class Progress:
    """A step that is done.

    Attributes:
        loss: mean over the step's answer tokens, nats.
        tokens_per_second: answers, turns and conversations of both models.
        validated: the held-out answers, where they were measured after this step.
    """

    step: int
    steps: int
    loss: float
    rate: float
    tokens_per_second: float
    validated: Measured | None = None


def train(
    recipe: Recipe,
    sender: Engine,
    receiver: Engine,
    work: Path,
    target: Path,
    shown: Callable[[Progress], None] = lambda _progress: None,
    waiting: Callable[[str, float], None] = lambda _what, _share: None,
) -> Bundle:
    """Train by a recipe, or go on where the last process stopped, and write the bundle of the best validation.

    Args:
        work: folder of the checkpoint and the metrics.
        target: folder of the bundle.
        waiting: hears what is done before the first step, and its share.

    Raises:
        AdapterError: the adapter has no closed form that the recipe asks for, the loss is no number any more, or
            `work` holds another training.
    """
    training = Training(recipe, Pair(sender, receiver), work, shown)
    training.begin(waiting)
    training.run()
    metrics = training.metrics()
    ends = End.of(sender.loaded), End.of(receiver.loaded)
    done = recipe.model_dump(mode="json", exclude_defaults=True) | {"steps_done": training.state.step}
    best, dtype = training.best(), getattr(torch, recipe.weights)
    bundle = save_bundle(target, best, *ends, recipe=done, metrics=metrics, license=recipe.license, dtype=dtype)
    _write(work / METRICS, {"metrics": metrics, "log": training.state.log})
    return bundle


class Training:
    """One training on its way."""

    def __init__(self, recipe: Recipe, pair: Pair, work: Path, shown: Callable[[Progress], None]) -> None:
        from accelerate import Accelerator

        self.recipe, self.pair, self.work, self.shown = recipe, pair, work, shown
        marks = pair.sender.fingerprint, pair.receiver.fingerprint
        trained, self.held_out_samples = load_samples(recipe.data, recipe.seed)
        arguments = with_layers(recipe.arguments, pair, distinct(trained, len(trained)))
        torch.manual_seed(recipe.seed)
        self.adapter: Adapter = make_adapter(recipe.adapter, marks[0].geometry, marks[1].geometry, arguments)
        on_cpu = pair.receiver.loaded.device.type == "cpu"
        self.accelerator: Any = Accelerator(mixed_precision=recipe.mixed_precision, cpu=on_cpu)
        optimizer = torch.optim.AdamW(
            self.adapter.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
        )
        self.prepared, self.optimizer = self.accelerator.prepare(self.adapter, optimizer)
        self.samples, ends = trained, (pair.sender, pair.receiver, self.adapter.place)
        self.examples, self.held_out = make_examples(trained, *ends), make_examples(self.held_out_samples, *ends)
        texts = [asdict(sample) for sample in (*trained, *self.held_out_samples)]  # a file may change under its name
        told = recipe.model_dump(mode="json"), [asdict(mark) for mark in marks], texts
        self.mark = blake3(json.dumps(told, sort_keys=True).encode()).hexdigest()
        self.state = load_state(work / CHECKPOINT, self.mark, self.adapter, self.optimizer)

    def begin(self, waiting: Callable[[str, float], None]) -> None:
        """Find what the recipe wants in closed form, unless that was done; and measure it."""
        how, state = self.recipe.closed_form, self.state
        if how is None or state.best:
            if not (self.recipe.steps or state.best):
                raise AdapterError(
                    "Nothing would be trained: no steps, and no closed form.", fix="Give the recipe one."
                )
            return
        log = FitLog(self.work / FIT, self.mark)
        texts = distinct(self.samples, how.texts)
        fit(self.adapter, self.pair, texts, how.ridge, log, partial(waiting, "reading the texts in both models"))
        self._validate()
        save_state(self.work / CHECKPOINT, self.mark, state, self.adapter, self.optimizer)
        log.path.unlink(missing_ok=True)

    def run(self) -> None:
        """Do the steps that are missing."""
        recipe, state = self.recipe, self.state
        while state.step < recipe.steps and not self._settled():
            start = time.perf_counter()
            loss, tokens = self.step(state.step)
            state.step += 1
            rate = recipe.rate(state.step - 1)
            state.log.append({"step": state.step, "loss": loss, "rate": rate})
            last = state.step == recipe.steps
            validated = self._validate() if last or state.step % recipe.validate_every == 0 else None
            if last or state.step % recipe.checkpoint_every == 0 or self._settled():
                save_state(self.work / CHECKPOINT, self.mark, state, self.adapter, self.optimizer)
            speed = tokens / (time.perf_counter() - start)
            self.shown(Progress(state.step, recipe.steps, loss, rate, speed, validated))

    def best(self) -> Adapter:
        """The adapter with the weights of the best validation, as the bundle will have them."""
        dtype = getattr(torch, self.recipe.weights)
        self.adapter.load_state_dict({name: t.to(dtype) for name, t in self.state.best.items()})
        return self.adapter.eval()

    def metrics(self) -> dict[str, Any]:
        """The held-out answers with the best weights, and what they must be compared with."""
        adapter, size = self.best(), self.recipe.batch
        ways: dict[str, Message] = {
            "message": "right",
            "receiver alone": "none",
            "zero": "zero",
            "mismatched": "mismatched",
        }
        found = {name: self.pair.measure(adapter, self.held_out, way, size=size) for name, way in ways.items()}
        asked = make_examples(self.held_out_samples, self.pair.sender, self.pair.sender)
        found["sender alone"] = self.pair.sender_alone(asked, size=size)
        return {"answers": len(self.held_out), **{name: asdict(m) for name, m in found.items()}}

    def _settled(self) -> bool:
        return self.recipe.patience is not None and self.state.since >= self.recipe.patience

    def step(self, step: int) -> tuple[float, int]:
        """One optimizer step; its loss and how many tokens it took."""
        recipe = self.recipe
        self.adapter.train()
        self.adapter.temperature = recipe.heat(step)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        torch.manual_seed((recipe.seed << 32) + step)
        total, tokens = 0.0, 0
        for batch in self.batches(step):
            loss = objective(self.pair, self.prepared, batch, recipe.losses) / recipe.accumulate
            self.accelerator.backward(loss)
            total += float(loss.detach())
            tokens += sum(len(e.sender) + len(e.own) + len(e.asked) + len(e.answer) for e in batch)
        if not total < float("inf"):
            raise AdapterError(
                f"The loss of step {step + 1} is {total}.",
                fix="Lower the learning rate, or the gates' temperature later.",
            )
        self.accelerator.clip_grad_norm_(self.adapter.parameters(), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total, tokens

    def batches(self, step: int) -> list[list[Example]]:
        """The examples of a step: every one once an epoch, in an order of the epoch's own."""
        size = self.recipe.batch
        taken = self.recipe.chosen(step, size * self.recipe.accumulate, len(self.examples))
        found = [self.examples[n] for n in taken]
        return [found[n : n + size] for n in range(0, len(found), size)]

    def _validate(self) -> Measured:
        """Measure the held-out answers; the score counts, and the likelihood between equal scores."""
        found = self.pair.measure(self.adapter.eval(), self.held_out, size=self.recipe.batch)
        self.state.log.append({"step": self.state.step, **asdict(found)})
        score = found.exact, -found.nll
        if self.state.best_score is None or score > self.state.best_score:
            self.state.best = {name: t.detach().clone() for name, t in self.adapter.state_dict().items()}
            self.state.best_score, self.state.since = score, 0
        else:
            self.state.since += 1
        return found


def _write(path: Path, content: Any) -> None:
    with whole_file(path) as out:
        write_blocks(out, [memoryview(json.dumps(content, indent=1).encode())])
