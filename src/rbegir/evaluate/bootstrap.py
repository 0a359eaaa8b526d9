"""Intervals by resampling queries.

Rows that belong to one query are not independent, so whole queries are drawn, with replacement, as often as
there are queries. A replicate is then nothing but a weight for each query, how often it was drawn, and a
statistic must only be computable with weights: a mean is, and so is AUC,

    AUC(w) = Σ_i w_i (Σ_{s_j < s_i} w_j + ½ Σ_{s_j = s_i} w_j) / (Σ_i w_i · Σ_j w_j)   i positive, j negative

which after one sort of the scores is a histogram and a cumulative sum a replicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

REPLICATES = 500
LEVEL = 0.95

Weights = npt.NDArray[np.float64]  # [queries]


class Measure(NamedTuple):
    """A figure with the interval that holds 95 % of its bootstrap replicates (None if there is none)."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> list[float] | None:
        return None if self.low is None or self.high is None else [self.low, self.high]


def replicates(queries: int, count: int, seed: int) -> Iterator[Weights]:
    """How often each query is drawn, `count` times over."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        drawn = generator.integers(0, queries, queries)
        yield np.bincount(drawn, minlength=queries).astype(np.float64)


def measure(
    value: float, statistic: Callable[[Weights], float], queries: int, *, count: int, seed: int
) -> Measure:
    """A value with its interval. One query, or no replicates, gives no interval."""
    if queries < 2 or count < 2:
        return Measure(value)
    values = np.array([statistic(weights) for weights in replicates(queries, count, seed)])
    values = values[np.isfinite(values)]  # a replicate without any negative has no AUC
    if not len(values):
        return Measure(value)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Measure(value, float(low), float(high))


def weighted_mean(
    values: npt.NDArray[np.float64], query: npt.NDArray[np.int64]
) -> Callable[[Weights], float]:
    """The statistic of a mean over rows [rows] that belong to queries [rows]."""
    return lambda weights: float(np.average(values, weights=weights[query]))


def weighted_auc(
    positive: npt.NDArray[np.bool_], scores: npt.NDArray[np.float32], query: npt.NDArray[np.int64]
) -> Callable[[Weights], float]:
    """The statistic of ROC AUC over rows [rows] that belong to queries [rows]."""
    levels, level = np.unique(scores, return_inverse=True)  # equal scores share a level
    plus, minus = level[positive], level[~positive]
    plus_query, minus_query = query[positive], query[~positive]

    def statistic(weights: Weights) -> float:
        negatives = np.bincount(minus, weights=weights[minus_query], minlength=len(levels))
        beaten = np.cumsum(negatives) - negatives / 2  # [levels] weight of negatives below, ties half
        won = weights[plus_query]
        total = won.sum() * negatives.sum()
        return float((won * beaten[plus]).sum() / total) if total else float("nan")

    return statistic
