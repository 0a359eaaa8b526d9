"""Ranks by counting equal ranks by sorting, ties and all block borders included."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.evaluate.retrieval import Targets
from rbegir.lab.reproduce import testbed
from rbegir.lab.reproduce.testbed import ranks


def by_sorting(scores: np.ndarray, query: np.ndarray, target: np.ndarray) -> list[int]:
    """The place of each target in the order (score descending, position ascending)."""
    out = []
    for row, place in zip(query, target, strict=True):
        order = np.lexsort((np.arange(scores.shape[1]), -scores[row]))
        out.append(int(np.flatnonzero(order == place)[0]))
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(1, 30),
    st.integers(1, 40),
    st.booleans(),
    st.integers(0, 99),
)
def test_codes(queries: int, keywords: int, targets: int, width: int, cosine: bool, seed: int) -> None:
    """Few dimensions of few values: most scores tie."""
    rng = np.random.default_rng(seed)
    q = rng.choice([-7, -5, -3, -1, 1, 3, 5, 7], (queries, 3)).astype(np.float32)
    k = rng.choice([-3, -1, 1, 3], (keywords, 3)).astype(np.float32)
    query, target = rng.integers(0, queries, targets), rng.integers(0, keywords, targets)
    scores = q @ k.T * ((1 / np.linalg.norm(k, axis=1)).astype(np.float32) if cosine else np.float32(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testbed, "RANKED", 4)
        patch.setattr(testbed, "CPU_SCORES", 4 * width)
        found = ranks(*map(torch.from_numpy, (q, k, query, target)), exact=True, cosine=cosine)
    assert found.tolist() == by_sorting(scores, query, target)


@pytest.mark.parametrize("cosine", [True, False])
def test_float_vectors(cosine: bool) -> None:
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((n, 5)).astype(np.float32) for n in (20, 3001))
    query, target = rng.integers(0, 20, 50), rng.integers(0, 3001, 50)
    before = torch.get_float32_matmul_precision()
    found = ranks(*map(torch.from_numpy, (q, k, query, target)), exact=False, cosine=cosine)
    wide = q.astype(np.float64) @ k.T.astype(np.float64)
    scores = wide / np.linalg.norm(k.astype(np.float64), axis=1) if cosine else wide
    assert found.tolist() == by_sorting(scores, query, target)
    assert torch.get_float32_matmul_precision() == before


def test_recall_is_the_mean_share_of_a_query_s_targets() -> None:
    pairs = pa.table({"query": ["a", "a", "b", "c"], "keyword": ["1", "2", "3", "4"]})
    found = Targets(pairs, pa.array(list("1234"))).recall_of_ranks(np.array([0, 9, 10, 3]), [1, 10])
    assert found[1].tolist() == [0.5, 0.0, 0.0]
    assert found[10].tolist() == [1.0, 0.0, 1.0]
