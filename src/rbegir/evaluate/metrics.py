"""Log loss and ROC AUC, with intervals by resampling queries.

*Log loss* is the paper's objective, per group: with the cosines c of one positive s⁺ and its negatives in a
sample group S (ten of them unless said otherwise),

    P(s⁺|S) = exp(γ c(s⁺)) / Σ_{s∈S} exp(γ c(s)),        log loss = −mean_S log P(s⁺|S)

γ is "set empirically on a held-out set" in the paper; `fit_gamma` finds the minimum, in which the loss is
convex, on the groups at hand. So a log loss says how well cosines separate, not how a γ was chosen.

*ROC AUC* is the probability that a random positive scores above a random negative, ties counting half. On
pairs all positives are pooled against all negatives of the groups; on labels the grades above bad are
positive.

*Intervals.* Rows of one query are not independent, so a bootstrap replicate draws whole queries, with
replacement, as many as there are. It is a weight per query (how often it was drawn), and so per row, and a
statistic must be computable with weights: a mean is, and so is AUC,

    AUC(w) = Σ_i w_i (Σ_{s_j < s_i} w_j + ½ Σ_{s_j = s_i} w_j) / (Σ_i w_i · Σ_j w_j)   i positive, j negative

which, after one sort of the scores, is a histogram and a cumulative sum per replicate.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError, needing

REPLICATES = 500
LEVEL = 0.95
_GAMMA_RANGE = (1e-2, 1e3)
_FIT_GROUPS = 100_000  # enough to find γ to four digits

Scores = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]  # of rows, or of queries


def group_losses(scores: Scores, gamma: float) -> npt.NDArray[np.float64]:
    """−log P(s⁺|S) of each group, from cosines [G, 1 + negatives] with the positive first → [G]."""
    if not 0 < gamma < np.inf:
        raise InputError(f"gamma must be positive and finite, got {gamma}")
    margins = gamma * (scores.astype(np.float64) - scores[:, :1])  # [G, 1 + negatives], 0 for the positive
    top = margins.max(axis=1)
    return np.asarray(top + np.log(np.exp(margins - top[:, None]).sum(axis=1)))


def log_loss(scores: Scores, gamma: float) -> float:
    """The paper's log loss: the mean of `group_losses`."""
    return float(group_losses(scores, gamma).mean())


def need_scipy() -> None:
    """Raise at once, not after the scoring, if scipy is missing: `fit_gamma` and the baselines need it."""
    with needing(
        "this evaluation needs scipy", "pip install 'rbegir[train]', or give gamma and leave out the baseline"
    ):
        import scipy  # noqa: F401


def fit_gamma(scores: Scores) -> float:
    """The γ with the least log loss on these groups, within 0.01 … 1000."""
    from scipy.optimize import minimize_scalar

    sample = scores[:_FIT_GROUPS]
    found = minimize_scalar(
        lambda power: log_loss(sample, float(np.exp(power))),
        bounds=tuple(np.log(_GAMMA_RANGE)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return float(np.exp(found.x))


def weighted_auc(positive: npt.NDArray[np.bool_], scores: Scores) -> Callable[[Weights], float]:
    """AUC(w) of rows [rows]; NaN where a class has no weight."""
    levels, level = np.unique(scores, return_inverse=True)  # equal scores share a level

    def statistic(weights: Weights) -> float:
        negatives = np.bincount(level[~positive], weights=weights[~positive], minlength=len(levels))
        beaten = np.cumsum(negatives) - negatives / 2  # [levels] weight of negatives below, ties half
        won = weights[positive]
        total = won.sum() * negatives.sum()
        return float((won * beaten[level[positive]]).sum() / total) if total else float("nan")

    return statistic


def roc_auc(positive: npt.NDArray[np.bool_], scores: Scores) -> float:
    """The area under the ROC curve; both classes must be there."""
    if positive.all() or not positive.any():
        raise InputError(
            f"ROC AUC needs two classes, got {len(positive)} "
            f"{'positive' if len(positive) and positive.all() else 'negative'} examples only"
        )
    return weighted_auc(positive, scores)(np.ones(len(scores)))


def group_auc(scores: Scores) -> float:
    """ROC AUC of all positives against all negatives of groups [G, 1 + negatives]."""
    return roc_auc(_positives(scores), scores.ravel())


def _positives(scores: Scores) -> npt.NDArray[np.bool_]:
    """Mask of the positives, the first of each group, in the scores [G, 1 + negatives] laid end to end."""
    return np.asarray(np.arange(scores.size) % scores.shape[1] == 0)


def auc_lift(auc: float, low: float, high: float) -> float:
    """Where an AUC lies between two reference models, in percent of their gap (in the paper m_3 and m_1)."""
    if low == high:
        raise InputError(f"AUC lift needs two different reference AUCs, got {low} twice")
    return 100 * (auc - low) / (high - low)


class Measure(NamedTuple):
    """A figure with the interval that holds 95 % of its bootstrap replicates (None if there is none)."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> list[float] | None:
        return None if self.low is None or self.high is None else [self.low, self.high]


def replicates(queries: int, count: int, seed: int) -> Iterator[Weights]:
    """`count` bootstrap replicates: how often each query is drawn."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        drawn = generator.integers(0, queries, queries)
        yield np.bincount(drawn, minlength=queries).astype(np.float64)


def measure(
    statistic: Callable[[Weights], float], query: npt.NDArray[np.int64], *, count: int, seed: int
) -> Measure:
    """A statistic of rows with its interval; `query` [rows] numbers, from 0, the queries that they belong to.

    One query, or no replicates, gives no interval.
    """
    value, queries = statistic(np.ones(len(query))), int(query.max()) + 1
    if queries < 2 or count < 2:
        return Measure(value)
    values = np.array([statistic(drawn[query]) for drawn in replicates(queries, count, seed)])
    values = values[np.isfinite(values)]  # a replicate without any negative has no AUC
    if not len(values):
        return Measure(value)
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Measure(value, float(low), float(high))


def measure_mean(
    values: npt.NDArray[np.float64], query: npt.NDArray[np.int64] | None = None, *, count: int, seed: int
) -> Measure:
    """The mean of values [rows] with its interval; without `query`, there is one value per query."""

    def mean(weights: Weights) -> float:
        return float(np.average(values, weights=weights))

    return measure(mean, np.arange(len(values)) if query is None else query, count=count, seed=seed)


def measure_groups(
    scores: Scores, query: npt.NDArray[np.int64], gamma: float, *, count: int, seed: int
) -> dict[str, Measure]:
    """Log loss and ROC AUC of groups [G, 1 + negatives] that belong to queries [G]."""
    auc, owner = weighted_auc(_positives(scores), scores.ravel()), np.repeat(query, scores.shape[1])
    return {
        "log_loss": measure_mean(group_losses(scores, gamma), query, count=count, seed=seed),
        "roc_auc": measure(auc, owner, count=count, seed=seed),
    }
