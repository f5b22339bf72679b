"""How an adapter is trained, as `configs/train/*.yaml` says it."""

from __future__ import annotations

from math import cos, pi
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Instructions = str | Annotated[tuple[str, ...], Field(min_length=1)]


class DataRecipe(_Model):
    """What is trained on, and what is held out."""

    task: Literal["private_facts", "hotpotqa", "squad", "jsonl"] = Field(
        default="private_facts",
        description="generated facts, HotpotQA, SQuAD, or lines of {context, question, answer}, and own_context where "
        "the receiver reads something itself",
    )
    file: Path | None = Field(
        default=None, description="the data of hotpotqa, squad and jsonl; its first items are held out"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="of the task")
    train: int = Field(default=1000, ge=1, description="at most so many items to train on")
    held_out: int = Field(default=32, ge=1, description="so many items to validate on")
    read: str = Field(default="{context}", description="the sender's prompt; {context} is what it reads")
    sender_system: Instructions = Field(
        default="", description="the sender's instructions, as of an agent; of several, one is drawn for each text"
    )
    receiver_system: Instructions = Field(default="", description="the receiver's")
    split: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the generated texts whose facts are divided: every second one, that which is asked for "
        "among them, is the sender's, and the receiver reads the rest itself",
    )

    @model_validator(mode="after")
    def _file_where_needed(self) -> DataRecipe:
        if (self.file is None) != (self.task == "private_facts"):
            raise ValueError(
                f"{self.task} {'needs a' if self.file is None else 'makes its own items and takes no'} file"
            )
        if self.split and self.task != "private_facts":
            raise ValueError(f"'split' divides generated facts, and {self.task} has none")
        if "{context}" not in self.read:
            raise ValueError("'read' says nowhere {context}, so the sender would read nothing")
        return self


class ClosedForm(_Model):
    """What is found without a gradient, before the first step: maps and principal components."""

    texts: int = Field(default=200, ge=1, description="at most so many of the data's texts are read for it")
    ridge: float = Field(default=0.01, gt=0, description="penalty, as a share of the inputs' mean variance")


class Weights(_Model):
    """What is made small: a sum of losses, each with its weight."""

    likelihood: float = Field(default=1.0, ge=0, description="of the right answer, nats a token")
    kl: float = Field(
        default=0.0, ge=0, description="of what the receiver says from what it says when it reads the text itself"
    )
    contrastive: float = Field(
        default=0.0,
        ge=0,
        description="InfoNCE over the batch: what a message adds is most like its own text (lcf_delta)",
    )


class Stepping(_Model):
    """How weights are changed, step by step."""

    steps: int = Field(default=300, ge=1, description="optimizer steps")
    batch: int = Field(default=4, ge=1, description="examples computed at once")
    learning_rate: float = Field(default=1e-3, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = Field(
        default="cosine", description="of the rate, after warm-up"
    )
    warmup: float = Field(default=0.1, ge=0, lt=1, description="share of the steps in which the rate rises")
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, gt=0, description="largest norm of a step's gradient")
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    validate_every: int = Field(default=50, ge=1, description="steps")
    checkpoint_every: int = Field(default=50, ge=1, description="steps")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        left = (step - rising) / max(1, self.steps - rising)
        shares = {"constant": 1.0, "linear": 1 - left, "cosine": 0.5 * (1 + cos(pi * left))}
        return self.learning_rate * shares[self.schedule]

    def order(self, epoch: int, count: int) -> list[int]:
        """The numbers below `count` in the order in which an epoch takes them; a function of the seed."""
        generator = torch.Generator().manual_seed((self.seed << 32) + epoch)
        drawn: list[int] = torch.randperm(count, generator=generator).tolist()
        return drawn

    def chosen(self, step: int, size: int, count: int) -> list[int]:
        """Which of `count` examples a step of `size` takes: every one once an epoch."""
        places = range(step * size, (step + 1) * size)
        orders = {epoch: self.order(epoch, count) for epoch in {place // count for place in places}}
        return [orders[place // count][place % count] for place in places]


class Recipe(Stepping):
    """Everything that a training depends on; the same recipe on the same machine gives the same weights."""

    adapter: str = Field(default="c2c", description="the adapter's registered name")
    arguments: dict[str, Any] = Field(default_factory=dict, description="of the adapter")
    sender: str | dict[str, Any] = Field(description="a model, as workflows name it")
    receiver: str | dict[str, Any] = Field(description="a model, as workflows name it")
    data: DataRecipe = Field(default_factory=DataRecipe)
    closed_form: ClosedForm | None = Field(
        default=None, description="how training starts; left out: from random weights"
    )
    losses: Weights = Field(default_factory=Weights)
    steps: int = Field(default=300, ge=0, description="optimizer steps; 0 where the closed form is all")
    accumulate: int = Field(default=1, ge=1, description="batches to a step")
    temperature: tuple[float, float] = Field(
        default=(1.0, 0.001), description="of the gates' draws, at the first and the last step"
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = Field(default="no", description="of the adapter, by accelerate")
    patience: int | None = Field(
        default=None, ge=1, description="stop after so many validations without a better score; left out: never"
    )
    weights: Literal["float32", "float16"] = Field(
        default="float32", description="number format in the bundle; figures are measured with the rounded ones"
    )
    license: str = Field(default="", description="SPDX name, for the bundle's card")

    def heat(self, step: int) -> float:
        """The gates' temperature at a step: geometric from the first value to the last."""
        first, last = self.temperature
        return float(first * (last / first) ** (step / max(1, self.steps - 1)))
