"""Replicates are weights: a weighted statistic must equal the statistic of the repeated rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from rbegir.evaluate.metrics import Measure, measure, measure_mean, replicates, weighted_auc


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_weights_are_repetitions(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    queries = data.draw(st.integers(1, 6))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    query = rng.integers(0, queries, rows)
    scores = np.round(rng.normal(size=rows), 1).astype(np.float32)  # with ties
    positive = rng.random(rows) < 0.5
    weights = rng.integers(0, 4, queries).astype(np.float64)
    again = np.repeat(np.arange(rows), weights[query].astype(int))  # the rows as they would be drawn
    value = weighted_auc(positive, scores)(weights[query])
    if positive[again].any() and not positive[again].all():
        assert value == pytest.approx(roc_auc_score(positive[again], scores[again]), abs=1e-12)
    else:
        assert math.isnan(value)


def test_replicates_draw_as_many_queries_as_there_are() -> None:
    drawn = list(replicates(65, 30, seed=3))
    assert len(drawn) == 30
    assert all(weights.sum() == 65 and len(weights) == 65 for weights in drawn)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, replicates(65, 30, seed=3), strict=True))
    assert not np.array_equal(drawn[0], next(replicates(65, 30, seed=4)))


def test_interval_of_a_mean_is_about_two_standard_errors(rng: np.random.Generator) -> None:
    values = (rng.random(2000) < 0.3).astype(np.float64)
    found = measure_mean(values, count=1000, seed=0)
    assert found.value == pytest.approx(values.mean())
    error = math.sqrt(values.mean() * (1 - values.mean()) / 2000)
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=error / 4)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=error / 4)


def test_rows_of_one_query_go_together(rng: np.random.Generator) -> None:
    """Ten copies of each row are no new evidence when they belong to the same query."""
    values = rng.normal(size=200)
    alone = measure_mean(values, count=400, seed=0)
    copied = measure_mean(np.repeat(values, 10), np.repeat(np.arange(200), 10), count=400, seed=0)
    assert copied.interval == pytest.approx(alone.interval)


def test_no_interval() -> None:
    assert measure_mean(np.full(1, 0.5), count=100, seed=0) == Measure(0.5)
    assert measure_mean(np.full(5, 0.5), count=0, seed=0).interval is None

    def of_all_alone(weights: np.ndarray) -> float:
        return 0.5 if (weights == 1).all() else math.nan

    assert measure(of_all_alone, np.arange(50), count=10, seed=0) == Measure(0.5)
