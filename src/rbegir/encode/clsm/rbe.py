"""The recurrent binary embedding layers: one base vector, then residual after residual.

    b⁰      = ρ(W f)                             base vector                    [batch, n]
    f^{t−1} = tanh(B^{t−1} b^{t−1})              what b^{t−1} says about f      [batch, m]
    d^{t−1} = ρ(R^{t−1} (f − f^{t−1}))           what it leaves out             [batch, n]
    b^t     = b^{t−1} + (½)^t d^{t−1}            the refined vector

P planes are one base vector and P − 1 rounds. B and R differ from round to round (`time_varying`) or are one
pair for all of them; with `residual_weights` off every plane weighs 1 and two planes can cancel to 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rbegir.encode.clsm.binarize import binarize
from rbegir.encode.clsm.draws import Draw
from rbegir.encode.clsm.presets import ModelConfig


class Embedding(NamedTuple):
    """What a side computes for a batch of texts."""

    vector: Tensor  # [batch, n]: b^t of an RBE side, the tanh vector of a float side
    planes: tuple[Tensor, ...]  # b⁰, d⁰, d¹ …, each [batch, n] of ±1; empty for a float side
    log_prob: Tensor | None  # [batch]: log P of the drawn bits, for the stochastic estimator only
    features: Tensor  # [batch, m]: f, what all of it was made from


class RBE(nn.Module):
    """The layers above. `slope` and `draw` belong to the estimators and are set by the trainer."""

    def __init__(self, config: ModelConfig, planes: int) -> None:
        super().__init__()
        self.planes = planes
        self.estimator = config.estimator
        self.residual_weights = config.residual_weights
        self.slope = 1.0
        self.draw: Draw | None = None
        rounds = planes - 1 if config.time_varying else min(planes - 1, 1)
        self.W = nn.Linear(config.width, config.n, bias=config.bias)
        self.B = nn.ModuleList(nn.Linear(config.n, config.width, bias=config.bias) for _ in range(rounds))
        self.R = nn.ModuleList(nn.Linear(config.width, config.n, bias=config.bias) for _ in range(rounds))

    def forward(self, f: Tensor) -> Embedding:
        base, log_prob = self._rho(self.W(f))  # [batch, n]
        vector, planes = base, [base]
        for t in range(1, self.planes):
            shared = min(t - 1, len(self.B) - 1)  # 0 in every round when B and R are fixed
            reconstructed = torch.tanh(self.B[shared](vector))  # [batch, m]
            residual, residual_log_prob = self._rho(self.R[shared](f - reconstructed))  # [batch, n]
            if log_prob is not None and residual_log_prob is not None:
                log_prob = log_prob + residual_log_prob
            vector = vector + residual * (0.5**t if self.residual_weights else 1.0)
            planes.append(residual)
        return Embedding(vector, tuple(planes), log_prob, f)

    def _rho(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return binarize(x, self.estimator, training=self.training, slope=self.slope, draw=self.draw)
