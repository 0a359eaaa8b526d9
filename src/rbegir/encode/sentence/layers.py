"""The RBE layers apart from the two towers of text: any vector f in, planes out.

    f [count, width] ─ RBE ─ b⁰, b¹, … b^{P−1}        each a coarser or finer picture of the same f

`prefixes` gives all of them, so that a loss can ask each to be good: one training then serves a query that is
compared with three planes and a keyword that is stored with two.

*Where training starts.* Freshly drawn B and R make residual planes that say nothing about the residual.
With the frame A [width, n] that the Binarizer starts from (a rotation, or the n directions of most
variance, rotated), the mean μ of some vectors and the spread σ of y = Aᵀ(f − μ), all layers have a meaning
from the first step on:

    W = R = Aᵀ / σ         y / σ has spread 1 in every dimension
    B = σ A, bias μ        b⁰ says |y| ≈ σ, so the first residual is the sign of y / σ − b⁰, and so on

which is a rotation followed by a uniform scalar quantiser with thresholds 0, ±1, then ±½, ±1½ …: near the
best one for Gaussian dimensions (0.996 σ apart for four levels). `tanh` in the layers is close to the
identity for |f| well below 1; callers scale f to length 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rbegir.base.checks import whole_number
from rbegir.codes.planes import MAX_PLANES, Codes, check_dimension
from rbegir.encode.binarizer.frame import start
from rbegir.encode.clsm.presets import Estimator, ModelConfig
from rbegir.encode.clsm.rbe import RBE, Embedding


def rbe_layers(
    width: int, n: int, planes: int, *, estimator: Estimator = "straight_through_variant", bias: bool = True
) -> RBE:
    """RBE layers for vectors of `width` numbers."""
    check_dimension(n)
    whole_number("width", width)
    whole_number("planes", planes, 1, MAX_PLANES)
    return RBE(ModelConfig(n=n, conv=width, estimator=estimator, bias=bias), planes)


def prefixes(embedding: Embedding) -> list[Tensor]:
    """b⁰, b¹, … of an embedding, each [count, n]."""
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
    """Set the layers so that they quantise vectors like those of `sample` [count, width], as told above."""
    vectors = sample.detach().cpu().double().numpy()
    mean = vectors.mean(axis=0)
    centred = vectors - mean
    covariance = np.asarray(centred.T @ centred / max(1, len(centred)), np.float32)
    frame = start(covariance, layers.W.out_features, seed).astype(np.float64)  # A [width, n]
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


def without_sparse_checks() -> None:
    """Say explicitly that sparse gradients are not checked, or torch warns that nothing was said."""
    invariants = torch.sparse.check_sparse_tensor_invariants
    if not invariants.is_enabled():  # type: ignore[no-untyped-call]
        invariants.disable()  # type: ignore[no-untyped-call]
