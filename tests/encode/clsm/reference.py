"""The tower in float64 NumPy, straight from the equations of the paper, text by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.encode.clsm.presets import ModelConfig
from tests.read.reference import grams_of, words_of


class Trace(NamedTuple):
    """What ρ or the last tanh was applied to."""

    inputs: npt.NDArray[np.float64]  # [planes, texts, n]; one plane for a float side


def trace(
    config: ModelConfig, side: str, tensors: Mapping[str, npt.NDArray[np.float32]], texts: Sequence[str]
) -> Trace:
    weights = {name: array.astype(np.float64) for name, array in tensors.items()}
    tower = "shared" if config.share_towers else side

    def layer(name: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)

    rows = []
    for text in texts:
        grams = [grams_of(word, config.hash_buckets) for word in words_of(text)]
        parts = [weights[f"{tower}.conv.weight"][ids].sum(axis=0).reshape(3, -1) for ids in grams]
        zero = np.zeros_like(parts[0])
        windows = [
            before[0] + word[1] + after[2]
            for before, word, after in zip([zero, *parts], parts, [*parts[1:], zero], strict=False)
        ]
        f = np.tanh(np.max(windows, axis=0) + weights.get(f"{tower}.conv.bias", 0.0))
        for i in range(len(config.hidden)):
            f = np.tanh(layer(f"{tower}.hidden.{i}", f))
        planes = config.query_planes if side == "query" else config.keyword_planes
        if planes == 0:
            rows.append([layer(f"{side}.out", f)])
            continue
        inputs = [layer(f"{side}.rbe.W", f)]
        b = np.where(inputs[0] > 0, 1.0, -1.0)
        for t in range(1, planes):
            i = t - 1 if config.time_varying else 0
            rest = f - np.tanh(layer(f"{side}.rbe.B.{i}", b))
            inputs.append(layer(f"{side}.rbe.R.{i}", rest))
            b = b + (0.5**t if config.residual_weights else 1.0) * np.where(inputs[-1] > 0, 1.0, -1.0)
        rows.append(inputs)
    return Trace(np.array(rows).transpose(1, 0, 2))


def disagreements(
    got: npt.NDArray[np.bool_], inputs: npt.NDArray[np.float64], tolerance: float = 1e-5
) -> tuple[int, float]:
    """(wrong bits, share of texts left out) of signs [planes, texts, n] against what ρ was applied to.

    A bit may differ only where its input is within rounding of 0. The planes after such a doubtful bit follow
    another path, so from there on the text is left out; how many are is part of the answer.
    """
    wrong, doubtful = 0, np.zeros(got.shape[1], dtype=np.bool_)
    for signs, x in zip(got, inputs, strict=True):
        clear = np.abs(x) > tolerance
        wrong += int((((x > 0) != signs) & clear & ~doubtful[:, None]).sum())
        doubtful |= ~clear.all(axis=1)
    return wrong, float(doubtful.mean())
