"""Hits of a Binarizer's index, reranked by the vectors that their codes stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.encode.binarizer import vectors as products
from rbegir.errors import InputError
from rbegir.search.request import SearchRequest, k_group
from tests.isa import every_isa

DIMS, COUNT = 20, 3000
GOLDEN = Path(__file__).parents[1] / "golden"


def clouds(count: int, seed: int, dims: int = DIMS) -> np.ndarray:
    """Vectors with neighbours, whose lengths differ."""
    centres = np.random.default_rng(7).standard_normal((200, dims)) * np.geomspace(1, 0.2, dims)
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(0, 200, count)] + 0.3 * rng.standard_normal((count, dims)) + 0.2
    return (rows * rng.uniform(0.5, 1.5, (count, 1))).astype(np.float32)


VECTORS, QUERIES = clouds(COUNT, 1), clouds(40, 2)


@pytest.fixture(scope="module", params=["cosine", "l2"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> rbegir.Index:
    binarizer = rbegir.Binarizer(metric=request.param, moves=60).fit(clouds(4000, 3))
    made = rbegir.Index.create(tmp_path_factory.mktemp("vectors") / "a.rbe", binarizer)
    for part in np.split(VECTORS, [1, 700]):  # several segments
        made.add(part, attributes={"even": (np.arange(len(part)) % 2 == 0).tolist()})
    return made


def scores(binarizer: Any, queries: np.ndarray, codes: rbegir.Codes) -> np.ndarray:
    """The metric of queries and decoded codes [Q, count], from the tensors and in float64."""
    learned, space = binarizer.learned_, binarizer.space_
    b = codes.values().astype(np.float64)
    z = learned.mean + b / np.linalg.norm(b, axis=1, keepdims=True) @ learned.query.T.astype(np.float64)
    q = queries.astype(np.float64)
    if binarizer.metric == "cosine":
        q, z = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (q, z))
        return q @ z.T
    grown = np.maximum(1 + 2 * float(space.bend) * z[:, -1:], 0.05)
    x = z[:, :-1] / grown * float(space.scale) + space.shift
    return -((q[:, None] - x[None]) ** 2).sum(axis=2)


def truth(metric: str, queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    q, x = queries.astype(np.float64), vectors.astype(np.float64)
    if metric == "l2":
        return -((q[:, None] - x[None]) ** 2).sum(axis=2)
    q, x = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (q, x))
    return q @ x.T


def recall(ids: np.ndarray, meant: np.ndarray) -> float:
    best = np.argsort(-meant, axis=1)[:, :10]
    return float(np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(ids, best, strict=True)]))


@pytest.mark.parametrize(
    ("k", "candidates"), [(1, 1), (10, 10), (10, None), (7, 33), (100, None), (5000, None)]
)
def test_hits_are_the_best_candidates_by_decoded_vectors(
    index: rbegir.Index, k: int, candidates: int | None
) -> None:
    hits = index.search(QUERIES, k, rerank=True, candidates=candidates)
    assert hits.reranked
    pool = index.search(QUERIES, SearchRequest(k, candidates=candidates).vector_pool)
    decoded = scores(index.model, QUERIES, index.codes(np.arange(COUNT)))
    for i, found in enumerate(hits.ids):
        own = decoded[i, pool.ids[i]]
        np.testing.assert_allclose(hits.scores[i], np.sort(own)[::-1][:k], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(hits.scores[i], decoded[i, found], rtol=1e-4, atol=1e-5)
        assert len(np.unique(found)) == len(found) == min(k, COUNT)
    assert np.all(np.diff(hits.scores, axis=1) <= 0)
    by_code = {(i, row): score for i, row, score in _triples(pool)}
    assert all(by_code[i, row] == score for i, row, score in _triples(hits))


def _triples(hits: rbegir.Hits) -> list[tuple[int, int, float]]:
    return [
        (i, int(row), float(score))
        for i in range(len(hits))
        for row, score in zip(hits.rows[i], hits.code_scores[i], strict=True)
    ]


def test_they_are_better_than_hits_by_code(index: rbegir.Index) -> None:
    queries = clouds(400, 5)
    metric = index.model.metric  # type: ignore[attr-defined]
    meant = truth(metric, queries, VECTORS)
    plain, hits = index.search(queries, 10), index.search(queries, 10, rerank=True)
    assert recall(hits.ids, meant) > recall(plain.ids, meant)
    error, before = (
        float(np.sqrt(np.mean((one.scores - np.take_along_axis(meant, one.ids, 1)) ** 2)))
        for one in (hits, plain)
    )
    assert error < 1.1 * before


def test_by_default_and_by_codes_nothing_is_reranked(index: rbegir.Index) -> None:
    codes = index.model.encode_queries(QUERIES)
    plain = index.search_codes(codes, 10)
    for hits in (index.search(QUERIES, 10), index.search(QUERIES, 10, rerank=False)):
        assert not hits.reranked
        np.testing.assert_array_equal(hits.keys, plain.keys)
        np.testing.assert_array_equal(hits.scores, plain.scores)
        assert hits.cursor == plain.cursor
    with pytest.raises(InputError, match="rerank=True needs queries that are texts, or vectors"):
        index.search_codes(codes, 10, rerank=True)


def test_filters_limit_the_candidates(index: rbegir.Index) -> None:
    allowed = [5, 900, 901, 2999]
    hits = index.search(QUERIES, 10, rerank=True, allow=allowed)
    assert np.array_equal(np.sort(hits.ids, axis=1), [allowed] * len(QUERIES))
    each = index.search(QUERIES[:3], 2, rerank=True, where=["even", None, "even and not even"])
    assert each.counts.tolist() == [2, 2, 0]
    assert np.isnan(each.scores[2]).all()
    for number, where in enumerate(["even", None]):
        alone = index.search(QUERIES[number], 2, rerank=True, where=where)
        assert np.array_equal(alone.scores[0], each.scores[number])
        assert np.array_equal(alone.ids[0], each.ids[number])


def test_batches_threads_and_types_change_no_bit(
    index: rbegir.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = index.search(QUERIES, 10, rerank=True)
    monkeypatch.setattr(products, "BLOCK_VALUES", 1 << 10)
    monkeypatch.setattr(products, "cpu_count", lambda: 1)
    for queries in (QUERIES, QUERIES.astype(np.float64), QUERIES.tolist()):
        again = index.search(queries, 10, rerank=True)
        assert np.array_equal(again.scores, whole.scores)
        assert np.array_equal(again.ids, whole.ids)
    for i, query in enumerate(QUERIES[:5]):
        assert np.array_equal(index.search(query, 10, rerank=True).scores[0], whole.scores[i])


@every_isa()
def test_instruction_sets_change_no_bit(
    index: rbegir.Index, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RBEGIR_ISA", "portable")
    expected = index.search(QUERIES, 10, rerank=True)
    monkeypatch.setenv("RBEGIR_ISA", isa)
    hits = index.search(QUERIES, 10, rerank=True)
    assert np.array_equal(hits.scores, expected.scores)
    assert np.array_equal(hits.ids, expected.ids)


@pytest.mark.parametrize(("count", "dims", "planes"), [(2, 1, 1), (3, 5, 4), (30, 70, 2), (600, 3, 3)])
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_tiny_fits_and_odd_shapes(count: int, dims: int, planes: int, metric: str, tmp_path: Path) -> None:
    vectors = clouds(count, 4, dims)
    vectors[0] = 0
    binarizer = rbegir.Binarizer(keyword_planes=planes, metric=metric, moves=5).fit(vectors)
    with rbegir.Index.create(tmp_path / "a.rbe", binarizer) as index:
        assert index.search(vectors, 3, rerank=True).ids.shape == (count, 0)
        index.add(vectors)
        hits = index.search(vectors, 3, rerank=True)
        assert index.search(np.zeros((0, dims)), 3, rerank=True).ids.shape[0] == 0
    decoded = scores(binarizer, vectors[1:], binarizer.encode_keywords(vectors))
    np.testing.assert_allclose(
        hits.scores[1:], np.take_along_axis(decoded, hits.ids[1:], 1), rtol=1e-3, atol=1e-4
    )


def test_the_tenants_of_an_index(tmp_path: Path) -> None:
    binarizer = rbegir.Binarizer(moves=20).fit(VECTORS)
    with rbegir.Index.create(tmp_path / "a.rbe", binarizer, tenant="shop") as index:
        index.add(VECTORS[:600], attributes={"shop": ["a", "b"] * 300})
        hits = index.search(QUERIES, 5, rerank=True, tenant="b")
        other = index.search(QUERIES, 5, rerank=True, where="shop = 'b'", candidates=100)
    assert np.array_equal(hits.ids, other.ids)
    assert np.array_equal(hits.scores, other.scores)


def test_what_cannot_be_reranked_is_refused(tmp_path: Path) -> None:
    binarizer = rbegir.Binarizer(metric="ip", moves=5).fit(VECTORS)
    with rbegir.Index.create(tmp_path / "ip.rbe", binarizer) as index:
        index.add(VECTORS[:20])
        with pytest.raises(InputError, match="rerank=True changes nothing for metric='ip'"):
            index.search(QUERIES, 3, rerank=True)
        assert not index.search(QUERIES, 3).reranked
    binarizer = rbegir.Binarizer(moves=5).fit(VECTORS)
    with rbegir.Index.create(tmp_path / "a.rbe", binarizer) as index:
        index.add(VECTORS[:20])
        with pytest.raises(InputError, match="candidates must be at least k = 10, got 9"):
            index.search(QUERIES, 10, rerank=True, candidates=9)
        with pytest.raises(InputError, match="searched with vectors, got a text"):
            index.search("a text", 10, rerank=True)
        with pytest.raises(InputError, match="cannot be combined"):
            index.search(QUERIES, 10, rerank=True, min_score=0.5)
        with pytest.raises(InputError, match="features"):
            index.search(QUERIES[:, 1:], 10, rerank=True)


def test_requests_that_share_a_scan_have_the_same_candidates() -> None:
    for k in (1, 10, 16, 17, 64, 65, 1000):
        request = SearchRequest(k)
        assert request.vector_pool == SearchRequest(4 ** k_group(k)).vector_pool >= 2 * k
    assert SearchRequest(10, candidates=40).vector_pool == 40


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("binarizer*")))
def test_binarizers_of_earlier_versions_rerank_too(name: str, tmp_path: Path) -> None:
    binarizer = rbegir.Binarizer.load(GOLDEN / name)
    vectors = clouds(50, 1, binarizer.n_features_in_)
    with rbegir.Index.create(tmp_path / "a.rbe", binarizer) as index:
        index.add(vectors)
        hits = index.search(vectors[:5], 3, rerank=True)
    decoded = scores(binarizer, vectors[:5], binarizer.encode_keywords(vectors))
    np.testing.assert_allclose(hits.scores, np.take_along_axis(decoded, hits.ids, 1), rtol=1e-3, atol=1e-4)
