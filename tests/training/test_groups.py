"""Sample groups: no true positive is ever a negative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.training.loss import group

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=25)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([q for q, _ in pairs], np.int32), np.array([k for _, k in pairs], np.int32)


@settings(max_examples=200, deadline=None)
@given(PAIRS)
def test_columns_targets_and_known_positives(pairs: list[tuple[int, int]]) -> None:
    query, keyword = columns(pairs)
    groups = group(query, keyword)
    distinct = list(dict.fromkeys(k for _, k in pairs))  # in order of first occurrence
    assert [pairs[i][1] for i in groups.first] == distinct
    assert list(groups.first) == sorted(groups.first)
    assert [distinct[c] for c in groups.target] == [k for _, k in pairs]
    known = set(zip(groups.known_rows.tolist(), groups.known_columns.tolist(), strict=True))
    wanted = {
        (i, distinct.index(other))
        for i, (q, k) in enumerate(pairs)
        for p, other in pairs
        if p == q and other != k
    }
    assert known == wanted
    assert len(groups.known_rows) == len(wanted)  # each once
    assert groups.negatives.shape == (len(pairs), 0)


@settings(max_examples=200, deadline=None)
@given(PAIRS, st.integers(1, 12), st.integers(0, 99))
def test_drawn_negatives_are_never_positives(pairs: list[tuple[int, int]], count: int, seed: int) -> None:
    query, keyword = columns(pairs)
    groups = group(query, keyword, negatives=count, rng=np.random.default_rng(seed))
    distinct = keyword[groups.first]
    assert groups.negatives.shape == (len(pairs), count)
    assert groups.negatives.dtype == np.int32
    for i, (q, k) in enumerate(pairs):
        positives = {other for p, other in pairs if p == q}
        drawn = set(distinct[groups.negatives[i]].tolist())
        if positives == set(distinct.tolist()):
            assert drawn == {k}  # nothing to draw: copies of the positive, without gradient
        else:
            assert not drawn & positives


def test_draws_are_spread_and_repeatable() -> None:
    keyword = np.arange(50, dtype=np.int32)
    a = group(keyword, keyword, negatives=10, rng=np.random.default_rng(1)).negatives
    b = group(keyword, keyword, negatives=10, rng=np.random.default_rng(1)).negatives
    assert np.array_equal(a, b)
    counts = np.bincount(a.ravel(), minlength=50)
    assert counts.min() > 0
    assert counts.max() == pytest.approx(10, abs=12)
