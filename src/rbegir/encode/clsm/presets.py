"""The models of the paper by name, and the configuration they are made of.

| preset   | n   | query            | keyword          | bytes/keyword   |
|----------|-----|------------------|------------------|-----------------|
| m_1      | 64  | float            | float            | 256             |
| m_2      | 64  | 1 plane          | 1 plane          | 8               |
| m_3      | 128 | 1 plane          | 1 plane          | 16              |
| rbe_1    | 64  | 1 plane          | 1 plane          | 8               |
| rbe_2    | 64  | 2 planes         | 2 planes         | 16              |
| rbe_star | 64  | 3 planes         | 2 planes         | 16              |
| rbe_3    | 64  | 3 planes         | 3 planes         | 24              |
| m_5      | 64  | float (8 planes) | 2 planes         | 16              |

A float query is searched as eight planes: each dimension rounded to one of the 256 odd integers ±1..±255.

*Tensors.* Their names and shapes follow from the configuration, and from nothing else. All are float32,
row-major, weights as [out, in]. V = 37³ + hash_buckets, c = conv, m = width, side is `query` or `keyword`;
with `share_towers` conv and hidden layers are named `shared` instead.

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

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_PLANES, check_dimension
from rbegir.errors import InputError
from rbegir.read.tokenizer import VOCABULARY

Side = Literal["query", "keyword"]
SIDES: tuple[Side, ...] = ("query", "keyword")
FLOAT = 0  # a number of planes: 0 means a float vector (tanh), not a binary one
Estimator = Literal["straight_through", "straight_through_variant", "annealing_tanh", "stochastic"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model. Everything that a checkpoint must repeat to compute the same codes."""

    n: int = 64  # code dimension
    query_planes: int = 3  # u + 1; FLOAT (0) for a float query
    keyword_planes: int = 2  # v + 1; FLOAT (0) for a float keyword
    conv: int = 288  # width of the convolution, and of f when there are no hidden layers
    hidden: tuple[int, ...] = ()  # widths of further tanh layers after the pooling
    hash_buckets: int = 8192  # rows for grams outside a–z0–9
    share_towers: bool = False  # one tower below the heads for both sides
    time_varying: bool = True  # B^t and R^t differ from iteration to iteration
    residual_weights: bool = True  # (½)^t; off: all planes weigh the same
    bias: bool = True
    estimator: Estimator = "straight_through_variant"

    def __post_init__(self) -> None:
        check_dimension(self.n)
        for name, limit in (("query_planes", MAX_PLANES), ("keyword_planes", MAX_KEYWORD_PLANES)):
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise InputError(f"{name} must be from 0 (float) to {limit}, got {value!r}")
        if self.conv < 1 or any(width < 1 for width in self.hidden) or self.hash_buckets < 1:
            raise InputError("conv, hidden and hash_buckets must be positive")
        if self.estimator not in ESTIMATORS:
            raise InputError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}")

    @property
    def width(self) -> int:
        """m: the width of f, the input of the RBE layers."""
        return self.hidden[-1] if self.hidden else self.conv

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hidden": list(self.hidden)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelConfig:
        return cls(**{**data, "hidden": tuple(data.get("hidden", ()))})


_BASE = ModelConfig()
PRESETS: dict[str, ModelConfig] = {
    "m_1": replace(_BASE, query_planes=FLOAT, keyword_planes=FLOAT),
    "m_2": replace(_BASE, query_planes=1, keyword_planes=1),
    "m_3": replace(_BASE, n=128, query_planes=1, keyword_planes=1),
    "rbe_1": replace(_BASE, query_planes=1, keyword_planes=1),
    "rbe_2": replace(_BASE, query_planes=2, keyword_planes=2),
    "rbe_star": replace(_BASE, query_planes=3, keyword_planes=2),
    "rbe_3": replace(_BASE, query_planes=3, keyword_planes=3),
    "m_5": replace(_BASE, query_planes=FLOAT, keyword_planes=2),
}


def preset(name: str) -> ModelConfig:
    """The configuration of a preset, by its name in the table above."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}", hint=f"choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def planes_of(config: ModelConfig, side: str) -> int:
    """The planes of a side; FLOAT (0) for a float one."""
    return config.query_planes if side == "query" else config.keyword_planes


def tower_of(config: ModelConfig, side: str) -> str:
    """Whose conv and hidden layers a side uses."""
    return "shared" if config.share_towers else side


def iterations_of(config: ModelConfig, side: str) -> list[int]:
    """The indices of B and R that make plane 1, 2, … of a side."""
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
