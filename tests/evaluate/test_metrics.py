"""Log loss, γ, ROC AUC and lift against slow plain Python and the paper's own figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from rbegir.errors import InputError
from rbegir.evaluate.metrics import auc_lift, fit_gamma, group_auc, group_losses, log_loss, roc_auc


def slow_auc(positive: list[float], negative: list[float]) -> float:
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


@pytest.mark.parametrize("groups", [1, 2, 63, 64, 65])
@pytest.mark.parametrize("negatives", [1, 10])
def test_log_loss_is_the_formula(rng: np.random.Generator, groups: int, negatives: int) -> None:
    scores = rng.uniform(-1, 1, (groups, 1 + negatives)).astype(np.float32)
    gamma = 12.5
    total = 0.0
    for row in scores.tolist():
        total -= math.log(math.exp(gamma * row[0]) / sum(math.exp(gamma * c) for c in row))
    assert log_loss(scores, gamma) == pytest.approx(total / groups, rel=1e-9)
    assert group_losses(scores, gamma).shape == (groups,)


def test_log_loss_does_not_overflow() -> None:
    scores = np.array([[-1.0, 1.0], [1.0, -1.0]], dtype=np.float32)
    assert group_losses(scores, 1e5).tolist() == [2e5, 0.0]


def test_chance_is_log_of_the_group_size() -> None:
    assert log_loss(np.zeros((5, 11), dtype=np.float32), 10) == pytest.approx(math.log(11))


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan, math.inf])
def test_gamma_must_be_positive(gamma: float) -> None:
    with pytest.raises(InputError, match="gamma must be positive"):
        log_loss(np.zeros((1, 2), dtype=np.float32), gamma)


def test_fitted_gamma_is_the_best(rng: np.random.Generator) -> None:
    scores = rng.normal(0, 0.2, (500, 11)).astype(np.float32)
    scores[:, 0] += 0.3
    gamma = fit_gamma(scores)
    best = log_loss(scores, gamma)
    assert all(log_loss(scores, g) >= best - 1e-9 for g in np.geomspace(0.01, 1000, 200))
    assert fit_gamma(-scores) < 0.011  # a model that is wrong wants γ = 0


@pytest.mark.parametrize("size", [2, 3, 64, 65, 200])
@pytest.mark.parametrize("ties", [False, True])
def test_auc_counts_pairs(rng: np.random.Generator, size: int, ties: bool) -> None:
    scores = rng.normal(size=size).astype(np.float32)
    if ties:
        scores = np.round(scores).astype(np.float32)
    positive = rng.random(size) < 0.4
    positive[:2] = [True, False]
    expected = slow_auc(scores[positive].tolist(), scores[~positive].tolist())
    assert roc_auc(positive, scores) == pytest.approx(expected, abs=1e-12)
    assert roc_auc(positive, scores) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_group_auc_pools_all_groups(rng: np.random.Generator) -> None:
    scores = np.round(rng.normal(size=(37, 11)), 1).astype(np.float32)
    expected = slow_auc(scores[:, 0].tolist(), scores[:, 1:].ravel().tolist())
    assert group_auc(scores) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("value", "word"), [(True, "positive"), (False, "negative")])
def test_one_class(value: bool, word: str) -> None:
    with pytest.raises(InputError, match=f"ROC AUC needs two classes, got 3 {word} examples only"):
        roc_auc(np.full(3, value), np.zeros(3, dtype=np.float32))


def test_lift_as_in_the_paper() -> None:
    m_1, m_3 = 0.8044, 0.7846
    assert round(auc_lift(0.8005, m_3, m_1), 2) == 80.30  # rbe*
    assert round(auc_lift(0.8011, m_3, m_1), 2) == 83.33  # m_5
    assert round(auc_lift(0.7719, m_3, m_1), 2) == -64.14  # m_2
    with pytest.raises(InputError, match=r"two different reference AUCs, got 0\.8 twice"):
        auc_lift(0.9, 0.8, 0.8)
