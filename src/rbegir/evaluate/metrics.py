"""The figures of the paper.

Log loss is the paper's objective, per group: with the cosines c of one positive s⁺ and its negatives in a
sample group S (ten of them unless said otherwise),

    P(s⁺|S) = exp(γ c(s⁺)) / Σ_{s∈S} exp(γ c(s)),        log loss = −mean_S log P(s⁺|S)

γ is "set empirically on a held-out set" there; `fit_gamma` does that: the loss is convex in γ and its minimum
is found on the groups at hand. So a log loss says how well cosines separate, not how a γ was chosen.

ROC AUC is the probability that a random positive scores above a random negative, ties counting half. On pairs
all positives are pooled against all negatives of the groups; on labels the grades above bad are positive.

AUC lift places a model between two others, in percent of their gap: 0 is m_3, 100 is m_1 in the paper, and
rbe* reached 80.30.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rbegir.errors import InputError

_GAMMA_RANGE = (1e-2, 1e3)
_FIT_GROUPS = 100_000  # enough to find γ to four digits

Scores = npt.NDArray[np.float32]


def group_losses(scores: Scores, gamma: float) -> npt.NDArray[np.float64]:
    """−log P(s⁺|S) of each group, from cosines [G, 1 + negatives] with the positive first → [G]."""
    if not gamma > 0:
        raise InputError(f"gamma must be positive, got {gamma}")
    margins = gamma * (scores.astype(np.float64) - scores[:, :1])  # [G, 1 + negatives], 0 for the positive
    top = margins.max(axis=1)
    return np.asarray(top + np.log(np.exp(margins - top[:, None]).sum(axis=1)))


def log_loss(scores: Scores, gamma: float) -> float:
    """The paper's log loss: the mean of `group_losses`."""
    return float(group_losses(scores, gamma).mean())


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


def roc_auc(positive: npt.NDArray[np.bool_], scores: npt.NDArray[np.float32]) -> float:
    """The area under the ROC curve; both classes must be there."""
    from sklearn.metrics import roc_auc_score

    if positive.all() or not positive.any():
        raise InputError(
            f"ROC AUC needs two classes, got {len(positive)} "
            f"{'positive' if len(positive) and positive.all() else 'negative'} examples only"
        )
    return float(roc_auc_score(positive, scores))


def group_auc(scores: Scores) -> float:
    """ROC AUC of all positives against all negatives of groups [G, 1 + negatives]."""
    positive = np.zeros(scores.shape, dtype=np.bool_)
    positive[:, 0] = True
    return roc_auc(positive.ravel(), scores.ravel())


def auc_lift(auc: float, low: float, high: float) -> float:
    """Where an AUC lies between two reference models, in percent of their gap (the paper: m_3 and m_1)."""
    if low == high:
        raise InputError(f"AUC lift needs two different reference AUCs, got {low} twice")
    return 100 * (auc - low) / (high - low)
