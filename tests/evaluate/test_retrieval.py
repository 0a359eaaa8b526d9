"""Exact search and recall against sorting everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.codes.planes import Codes
from rbegir.errors import InputError, MismatchError
from rbegir.evaluate import retrieval
from rbegir.evaluate.retrieval import Targets, search_blocks
from rbegir.evaluate.scorers import ModelScorer


def sorted_all(scores: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@settings(deadline=None, max_examples=120)
@given(
    st.integers(1, 5),
    st.integers(1, 70),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 6]),
)
def test_top_k_of_a_stream(queries: int, count: int, k: int, block: int, seed: int, decimals: int) -> None:
    """Whatever the blocks and however many ties: the stable order of all scores."""
    scores = np.round(np.random.default_rng(seed).normal(size=(queries, count)), decimals).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "BLOCK", block)
        found = search_blocks(
            queries, count, k, lambda low, high: lambda rows: scores[rows, low:high], lambda done: None
        )
    assert np.array_equal(found, sorted_all(scores, k))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("k", [1, 10, 100])
@pytest.mark.parametrize("placed", [np.asarray, torch.from_numpy])
def test_search_in_blocks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, count: int, k: int, placed: Callable[..., Any]
) -> None:
    monkeypatch.setattr(retrieval, "BLOCK", 64)
    monkeypatch.setattr(retrieval, "QUERY_BLOCK", 7)
    queries = rng.integers(-2, 3, (17, 4)).astype(np.float32)  # whole numbers: exact products, many ties
    keywords = rng.integers(-2, 3, (count, 4)).astype(np.float32)
    seen: list[float] = []
    found = search_blocks(
        len(queries),
        count,
        k,
        lambda low, high: lambda rows: placed(queries)[rows] @ placed(keywords)[low:high].T,
        seen.append,
    )
    assert np.array_equal(found, sorted_all(queries @ keywords.T, k))
    assert seen[-1] == 1.0
    assert seen == sorted(seen)
    assert len(seen) >= -(-count // 64)


def table(pairs: list[tuple[str, str]]) -> pa.Table:
    return pa.table({"query": [q for q, _ in pairs], "keyword": [k for _, k in pairs]})


def test_recall_counts_what_was_found(rng: np.random.Generator) -> None:
    corpus = [f"text {i}" for i in range(50)]
    pairs = [(f"q{i % 20}", f"text {rng.integers(0, 60)}") for i in range(45)]
    targets = Targets(table(pairs), pa.array(corpus))
    assert targets.missing == sum(k not in corpus for _, k in pairs)
    positions = np.stack([rng.permutation(50)[:30] for _ in range(len(targets.queries))])
    found = targets.recall(positions, [1, 10, 30])
    for row, query in enumerate(targets.queries.to_pylist()):
        right = {k for q, k in pairs if q == query and k in corpus}
        for k in (1, 10, 30):
            got = {corpus[p] for p in positions[row, :k]}
            assert found[k][row] == pytest.approx(len(right & got) / len(right))


def test_order_is_ours_not_that_of_the_names() -> None:
    """ir-measures would order equal scores by name; ranks leave it no choice."""
    corpus = pa.array([str(i) for i in range(30)])
    for target in range(30):
        targets = Targets(table([("q", str(target))]), corpus)
        found = targets.recall(np.arange(30)[None], list(range(1, 31)))
        assert [k for k in range(1, 31) if found[k][0] == 1] == list(range(target + 1, 31))


def test_queries_without_a_target_are_left_out() -> None:
    targets = Targets(
        table([("a", "x"), ("b", "y"), ("c", "nowhere"), ("a", "nowhere")]), pa.array(["y", "x"])
    )
    assert targets.queries.to_pylist() == ["a", "b"]
    assert targets.missing == 2
    assert targets.recall(np.array([[1], [1]]), [1])[1].tolist() == [1.0, 0.0]


def test_no_target_at_all() -> None:
    with pytest.raises(InputError, match="none of the keywords of the pairs is in the corpus") as caught:
        Targets(table([("a", "Paris")]), pa.array(["paris"]))
    assert "same texts" in caught.value.hint


class FloatModel:
    """Unit vectors along the axes by the length and the first letter of a text: exact scores, many ties."""

    def __init__(self, device: str) -> None:
        self.device = device

    def embed_queries(self, texts: pa.StringArray) -> np.ndarray:
        signs = [1 if ord(text[0]) % 2 else -1 for text in texts.to_pylist()]
        axes = [len(text) % 4 for text in texts.to_pylist()]
        return np.array(signs, np.float32)[:, None] * np.eye(4, dtype=np.float32)[axes]

    embed_keywords = embed_queries

    def encode_queries(self, texts: pa.StringArray) -> Codes:
        raise MismatchError("float keywords have no codes")

    encode_keywords = encode_queries


def test_float_vectors_are_compared_on_the_device() -> None:
    queries, corpus = (pa.array([f"{chr(97 + i % 26)}{'x' * (i % 7)}" for i in range(n)]) for n in (9, 200))
    embed = FloatModel("").embed_queries
    wanted = sorted_all(embed(queries) @ embed(corpus).T, 20)
    for device in ("cpu", "cpu:0"):  # torch has a name of its own for the CPU
        found = ModelScorer(FloatModel(device)).search(queries, corpus, 20, lambda done: None)
        assert np.array_equal(found, wanted)
