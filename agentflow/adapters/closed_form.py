"""Maps between two models' caches without a gradient: ridge regression on what both compute of the same text.

Sums of products are taken text by text, so that memory doesn't grow with the texts, and a fit that is stopped goes on
where it was. The penalty is a share of the inputs' mean variance, toward the outputs' mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from agentflow.errors import AdapterError


@dataclass(eq=False)
class Moments:
    """Sums over rows of inputs and outputs, in float64: of one map.

    Attributes:
        count: rows.
        sums: `(inputs + outputs,)`.
        products: `(inputs, inputs + outputs)`: of inputs with inputs and with outputs.
    """

    inputs: int
    outputs: int
    count: int = 0
    sums: Tensor = field(init=False)
    products: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(self.inputs + self.outputs, dtype=torch.float64)
        self.products = torch.zeros(self.inputs, self.inputs + self.outputs, dtype=torch.float64)

    def add(self, inputs: Tensor, outputs: Tensor) -> None:
        """Take in rows `(n, inputs)` and `(n, outputs)`."""
        both = torch.cat([inputs.float(), outputs.to(inputs.device).float()], dim=-1)
        self.count += len(both)
        self.sums += both.sum(0).double().cpu()
        # The rows of one text in float32: its products are summed with those of others in float64.
        self.products += (both[:, : self.inputs].T @ both).double().cpu()

    def solve(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Weights `(outputs, inputs)` and bias `(outputs,)` of the best affine map, in float64.

        Args:
            ridge: penalty, as a share of the inputs' mean variance.

        Raises:
            AdapterError: there are no rows, or they are no numbers.
        """
        if self.count < 2:
            raise AdapterError("There is no text to fit on.")
        mean = self.sums / self.count
        centred = self.products / self.count - mean[: self.inputs, None] * mean[None]
        gram, cross = centred[:, : self.inputs], centred[:, self.inputs :]
        gram = gram + torch.eye(self.inputs, dtype=torch.float64) * ridge * float(gram.diagonal().mean())
        # Cholesky: batched LU of some builds is wrong on CPUs, and the system is positive definite.
        factor, failed = torch.linalg.cholesky_ex(gram)
        if int(failed) or not bool(torch.isfinite(factor).all()):
            raise AdapterError("The maps can't be fitted: the models' states are no numbers, or too few of them.")
        weights = torch.cholesky_solve(cross, factor).T
        return weights, mean[self.inputs :] - weights @ mean[: self.inputs]

    def covariance(self) -> Tensor:
        """`(inputs, inputs)` of the inputs, in float64."""
        mean = self.sums[: self.inputs] / self.count
        found: Tensor = self.products[:, : self.inputs] / self.count - mean[:, None] * mean[None]
        return found


def reduced(weights: Tensor, moments: Moments, rank: int) -> tuple[Tensor, Tensor]:
    """`weights (outputs, inputs)` as `up (outputs, rank) @ down (rank, inputs)`, least squares over the rows seen.

    Reduced-rank regression (Izenman 1975): the outputs' predictions are projected to their main directions.
    """
    _, directions = torch.linalg.eigh(weights @ moments.covariance() @ weights.T)
    up = directions[:, -rank:]
    return up, up.T @ weights


def principal(products: Tensor, rank: int) -> Tensor:
    """`(inputs, rank)` main directions of a centred sum of products `(inputs, inputs)`, the largest first."""
    _, directions = torch.linalg.eigh(products)
    main: Tensor = directions[:, -rank:].flip(-1)
    return main


class Fitted(ABC):
    """An adapter some of whose weights follow from what both models compute of the same texts.

    Attributes:
        stages: how often the texts are gone through; a later stage stands on what an earlier one has set.
    """

    stages: ClassVar[int] = 1

    @abstractmethod
    def moments(self, stage: int) -> list[Moments]:
        """Empty sums, one for each thing that is fitted."""

    @abstractmethod
    def take(self, stage: int, moments: Sequence[Moments], theirs: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        """Take in a text: per layer the states `(n, width)` of both models at the same tokens, without positions."""

    @abstractmethod
    def settle(self, stage: int, moments: Sequence[Moments], ridge: float) -> None:
        """Set the weights."""
