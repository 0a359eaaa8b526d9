"""The tensors of a model: their names and shapes follow from the configuration, and from nothing else.

All are float32, row-major, weights as [out, in]. V = 37³ + hash_buckets, c = conv, m = width, side is
`query` or `keyword`; with `share_towers` conv and hidden layers are named `shared` instead.

    {side}.conv.weight          [V, 3c]   columns: word before | the word | word after
    {side}.conv.bias            [c]
    {side}.hidden.{i}.weight    [out, in]
    {side}.rbe.W.weight         [n, m]    a side of planes; B and R once for each plane after the first
    {side}.rbe.B.{t}.weight     [m, n]    (once in all when they do not vary with t)
    {side}.rbe.R.{t}.weight     [n, m]
    {side}.out.weight           [n, m]    a float side

Every weight but the first has a bias [out] of the same name; without `bias` no tensor of that name exists.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rbegir.encode.clsm.presets import FLOAT, ModelConfig
from rbegir.read.tokenizer import VOCABULARY

SIDES = ("query", "keyword")


def planes_of(config: ModelConfig, side: str) -> int:
    """The planes of a side; FLOAT (0) for a float one."""
    return config.query_planes if side == "query" else config.keyword_planes


def tower_of(config: ModelConfig, side: str) -> str:
    """Whose conv and hidden layers a side uses."""
    return "shared" if config.share_towers else side


def iterations_of(config: ModelConfig, side: str) -> list[int]:
    """Which B and R make plane 1, 2, … of a side."""
    later = max(planes_of(config, side) - 1, 0)
    return list(range(later)) if config.time_varying else [0] * later


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor of a model."""
    layers: dict[str, tuple[int, int]] = {}  # name → (out, in) of the dense ones
    shapes: dict[str, tuple[int, ...]] = {}
    widths = (config.conv, *config.hidden)
    for tower in dict.fromkeys(tower_of(config, side) for side in SIDES):
        shapes[f"{tower}.conv.weight"] = (VOCABULARY + config.hash_buckets, 3 * config.conv)
        if config.bias:
            shapes[f"{tower}.conv.bias"] = (config.conv,)
        for i, (before, after) in enumerate(pairwise(widths)):
            layers[f"{tower}.hidden.{i}"] = (after, before)
    for side in SIDES:
        if planes_of(config, side) == FLOAT:
            layers[f"{side}.out"] = (config.n, config.width)
            continue
        layers[f"{side}.rbe.W"] = (config.n, config.width)
        for t in iterations_of(config, side):
            layers[f"{side}.rbe.B.{t}"] = (config.width, config.n)
            layers[f"{side}.rbe.R.{t}"] = (config.n, config.width)
    for name, shape in layers.items():
        shapes[f"{name}.weight"] = shape
        if config.bias:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights that keep activations near 1, for measuring speed without a trained model."""
    draw = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        scale = np.float32(0.2 if ".conv." in name else shape[-1] ** -0.5)
        tensors[name] = draw.standard_normal(shape, dtype=np.float32) * scale
    return tensors
