"""The recurrent binary embedding layers: one base vector, then residual after residual.

    b⁰      = ρ(W f)                             base vector                    [batch, n]
    f^{t−1} = tanh(B^{t−1} b^{t−1})              what b^{t−1} says about f      [batch, m]
    d^{t−1} = ρ(R^{t−1} (f − f^{t−1}))           what it leaves out             [batch, n]
    b^t     = b^{t−1} + (½)^t d^{t−1}            the refined vector

P planes are one base vector and P − 1 rounds. B and R differ from round to round (`time_varying`) or are one
pair for all of them; with `residual_weights` off every plane weighs 1 and two planes can cancel to 0.

*For any vector.* f need not come from a tower: `rbe_layers` makes the layers for vectors of any encoder.

*Where such layers start.* Freshly drawn B and R make residual planes that say nothing about the residual.
With the frame A [width, n] that the Binarizer starts from (a rotation, or the n directions of most
variance, rotated), the mean μ of some vectors and the spread σ of y = Aᵀ(f − μ), all layers have a meaning
from the first step on:

    W = R = Aᵀ / σ         y / σ has spread 1 in every dimension
    B = σ A, bias μ        b⁰ says |y| ≈ σ, so the first residual is the sign of y / σ − b⁰, and so on

which is a rotation followed by a uniform scalar quantiser with thresholds 0, ±1, then ±½, ±1½ …: near the
best one for Gaussian dimensions (0.996 σ apart for four levels). `tanh` in the layers is close to the
identity for |f| well below 1; callers scale f to length 1.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rbegir.codes.planes import MAX_PLANES, Codes
from rbegir.encode.binarizer.learn import start_frame
from rbegir.encode.clsm.binarize import Draw, binarize
from rbegir.encode.clsm.presets import Estimator, ModelConfig
from rbegir.errors import whole_number


class Embedding(NamedTuple):
    """The outputs of a side for a batch of texts."""

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


def rbe_layers(width: int, n: int, planes: int, *, estimator: Estimator = "straight_through_variant") -> RBE:
    """RBE layers for vectors of `width` numbers."""
    whole_number("width", width)
    whole_number("planes", planes, 1, MAX_PLANES)
    return RBE(ModelConfig(n=n, conv=width, estimator=estimator), planes)


def prefixes(embedding: Embedding) -> list[Tensor]:
    """b⁰, b¹, … of an embedding, each [count, n]: what it is worth with one plane, with two, …"""
    vectors = [embedding.planes[0]]
    for t, plane in enumerate(embedding.planes[1:], start=1):
        vectors.append(vectors[-1] + 0.5**t * plane)
    return vectors


def codes_of(embedding: Embedding) -> Codes:
    """The packed planes of an embedding."""
    signs = torch.stack(embedding.planes) > 0  # [planes, count, n]
    return Codes.from_signs(np.ascontiguousarray(signs.cpu().numpy()))


@torch.no_grad()
def start_as_quantiser(layers: RBE, sample: Tensor, seed: int = 0) -> None:
    """Start the layers as the quantiser above, of vectors like those of `sample` [count, width]."""
    vectors = sample.detach().cpu().double().numpy()
    mean = vectors.mean(axis=0)
    centred = vectors - mean
    covariance = np.asarray(centred.T @ centred / max(1, len(centred)), np.float32)
    frame = start_frame(covariance, layers.W.out_features, seed).astype(np.float64)  # A [width, n]
    spread = float(np.sqrt(np.mean((centred @ frame) ** 2))) or 1.0

    def put(layer: nn.Module, weight: npt.NDArray[np.float64], bias: npt.NDArray[np.float64]) -> None:
        assert isinstance(layer, nn.Linear)
        layer.weight.copy_(torch.from_numpy(weight))
        if layer.bias is not None:
            layer.bias.copy_(torch.from_numpy(bias))

    put(layers.W, frame.T / spread, -(mean @ frame) / spread)
    for back, residual in zip(layers.B, layers.R, strict=True):
        put(back, spread * frame, mean)
        put(residual, frame.T / spread, np.zeros(frame.shape[1]))


def fingerprint_of(settings: Mapping[str, object], module: nn.Module) -> str:
    """32 hex digits that name a configuration and its weights, as an index remembers them."""
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()[:32]
