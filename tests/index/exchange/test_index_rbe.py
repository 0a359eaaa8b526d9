"""IndexRBE beside a flat FAISS index: the same calls, the same conventions."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rbegir
from rbegir.codes.score import keys
from rbegir.errors import InputError, MismatchError
from rbegir.index.exchange.faiss import import_faiss
from tests.index.fakes import HashEncoder


def cloud(count: int, d: int = 32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((10, d))
    raw = centres[rng.integers(0, 10, count)] + 0.5 * rng.standard_normal((count, d))
    return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


def test_it_switches_by_one_line() -> None:
    vectors, queries = cloud(1000), cloud(20, seed=1)
    answers = {}
    for index in (faiss.IndexFlatIP(32), rbegir.IndexRBE(32, n=128, keyword_planes=4)):
        index.train(vectors)
        index.add(vectors[:600])
        index.add(vectors[600:])
        assert (index.d, index.ntotal, index.is_trained) == (32, 1000, True)
        assert index.metric_type == faiss.METRIC_INNER_PRODUCT
        scores, ids = index.search(queries, 10)
        assert (scores.shape, scores.dtype, ids.dtype) == ((20, 10), np.float32, np.int64)
        assert np.all(np.diff(scores, axis=1) <= 0)
        answers[type(index).__name__] = scores, ids
    (_, theirs), (_, ours) = answers.values()
    shared = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ours, theirs, strict=True)])
    assert shared > 0.85


def test_bytes_choose_the_codes() -> None:
    vectors = cloud(1000)
    index = rbegir.IndexRBE(32, bytes=16)
    index.train(vectors)
    chosen = rbegir.Binarizer(32, bytes=16).fit(vectors)
    assert index.binarizer.fingerprint == chosen.fingerprint
    assert chosen.n * chosen.keyword_planes == 128


def test_search_equals_the_specification() -> None:
    vectors, queries = cloud(300), cloud(7, seed=1)
    index = rbegir.IndexRBE(32)
    index.train(vectors)
    index.add(vectors[:65])
    index.add(vectors[65:])
    scores, ids = index.search(queries, 300)
    asked = index.binarizer.encode_queries(queries).values()
    exact = keys(asked, index.binarizer.encode_keywords(vectors))
    order = np.argsort(-exact, axis=1, kind="stable")
    assert np.array_equal(ids, order)
    expected = index.binarizer.key_scores(asked)(np.take_along_axis(exact, order, axis=1))
    assert np.array_equal(scores, expected.astype(np.float32))


@pytest.mark.parametrize(
    ("metric", "flat"), [("cosine", faiss.IndexFlatIP), ("ip", faiss.IndexFlatIP), ("l2", faiss.IndexFlatL2)]
)
def test_distances_are_those_of_faiss_in_every_metric(metric: str, flat: type, tmp_path: Path) -> None:
    lengths = np.ones(1500) if metric == "cosine" else np.random.default_rng(4).uniform(0.5, 2, 1500)
    vectors = (cloud(1500) * lengths[:, None]).astype(np.float32)
    queries = (cloud(20, seed=1) * (1 if metric == "cosine" else 3)).astype(np.float32)
    theirs, ours = flat(32), rbegir.IndexRBE(32, n=128, keyword_planes=4, metric=metric)
    for index in (theirs, ours):
        index.train(vectors)
        index.add(vectors)
    assert ours.metric_type == theirs.metric_type
    (meant, best), (found, ids) = theirs.search(queries, 1500), ours.search(queries, 1500)
    back = np.argsort(ids, axis=1)
    error = np.take_along_axis(found, back, axis=1) - np.take_along_axis(
        meant, np.argsort(best, axis=1), axis=1
    )
    assert np.sqrt(np.mean(error**2)) < 0.1 * meant.std()
    assert np.mean([len(np.intersect1d(*pair)) for pair in zip(best[:, :10], ids[:, :10], strict=True)]) > 8
    worse = ours.search(queries[:1], 1501)[0][0]
    assert worse[-1] == np.finfo(np.float32).max * (1 if metric == "l2" else -1)
    imported = import_faiss(theirs, tmp_path / "i.rbe")
    assert imported.model.metric == metric


def test_missing_neighbours_look_as_in_faiss() -> None:
    flat, ours = faiss.IndexFlatIP(32), rbegir.IndexRBE(32)
    ours.train(cloud(50))
    for count in (0, 2):
        if count:
            flat.add(cloud(count))
            ours.add(cloud(count))
        their_scores, their_ids = flat.search(cloud(3, seed=1), 5)
        scores, ids = ours.search(cloud(3, seed=1), 5)
        assert np.array_equal(ids == -1, their_ids == -1)
        assert np.array_equal(scores[ids == -1], their_scores[their_ids == -1])
    assert ours.search(cloud(0), 3)[0].shape == (0, 3)


@given(st.lists(st.one_of(st.integers(0, 20), st.lists(st.integers(-3, 40), max_size=8)), max_size=8))
@settings(max_examples=30)
def test_ids_move_as_in_faiss(script: list[int | list[int]]) -> None:
    """Numbers add so many vectors, lists remove ids; the same vectors are left on both sides."""
    pool = cloud(400, d=8, seed=3)
    flat, ours = faiss.IndexFlatIP(8), rbegir.IndexRBE(8)
    ours.train(pool)
    next_vector = 0
    for step in script:
        if isinstance(step, int):
            fresh = pool[next_vector : next_vector + step]
            next_vector += step
            flat.add(fresh)
            ours.add(fresh)
        else:
            ids = np.array(step, np.int64)
            assert ours.remove_ids(ids) == flat.remove_ids(ids)
        assert ours.ntotal == flat.ntotal
    if flat.ntotal:
        left = flat.reconstruct_n(0, flat.ntotal)
        expected = ours.binarizer.inverse_transform(ours.binarizer.encode_keywords(left))
        assert np.array_equal(ours.reconstruct_n(), expected)


def test_a_selector_removes_too() -> None:
    flat, ours = faiss.IndexFlatIP(32), rbegir.IndexRBE(32)
    ours.train(cloud(50))
    for index in (flat, ours):
        index.add(cloud(50))
        assert index.remove_ids(faiss.IDSelectorRange(10, 30)) == 20
        assert index.ntotal == 30
    ours.reset()
    assert ours.ntotal == 0
    assert ours.is_trained


def test_reconstruct_points_the_same_way() -> None:
    vectors = cloud(200)
    index = rbegir.IndexRBE(32, n=128, keyword_planes=4)
    index.train(vectors)
    index.add(vectors)
    back = index.reconstruct_n(0, 200)
    assert np.einsum("ij,ij->i", back, vectors).min() > 0.97
    assert np.allclose(index.reconstruct(17), back[17], atol=1e-6)
    for bad in (-1, 200):
        with pytest.raises(InputError, match=r"ids must be from 0 to 199"):
            index.reconstruct(bad)


def test_write_and_read(tmp_path: Path) -> None:
    vectors, queries = cloud(150), cloud(5, seed=1)
    index = rbegir.IndexRBE(32)
    index.train(vectors)
    index.add(vectors[:100])
    index.add(vectors[100:])
    index.remove_ids(np.array([3, 4]))
    index.write(tmp_path / "i.rbe")
    again = rbegir.IndexRBE.read(tmp_path / "i.rbe")
    for a, b in zip(index.search(queries, 9), again.search(queries, 9), strict=True):
        assert np.array_equal(a, b)
    again.add(vectors[:1])
    assert again.ntotal == 149
    with rbegir.Index.open(tmp_path / "i.rbe") as opened:  # it is an index like any other
        assert np.array_equal(opened.search(queries, 9).ids, index.search(queries, 9)[1])
    with pytest.raises(rbegir.RbegirError, match="exists already"):
        index.write(tmp_path / "i.rbe")
    empty = rbegir.IndexRBE(32, binarizer=index.binarizer)
    empty.write(tmp_path / "empty.rbe")
    assert rbegir.IndexRBE.read(tmp_path / "empty.rbe").ntotal == 0


def test_bad_input(tmp_path: Path) -> None:
    index = rbegir.IndexRBE(32)
    for call in (lambda: index.add(cloud(3)), lambda: index.search(cloud(3), 1), lambda: index.write("x")):
        with pytest.raises(InputError, match="the index is not trained"):
            call()
    index.train(cloud(50))
    with pytest.raises(InputError, match="k must be a whole number of at least 1, got 0"):
        index.search(cloud(3), 0)
    with pytest.raises(InputError, match="32"):
        index.add(cloud(3, d=16))
    bad = cloud(3)
    bad[1, 1] = np.nan
    with pytest.raises(InputError, match="NaN"):
        index.add(bad)
    assert index.ntotal == 0
    index.add(cloud(3))
    with pytest.raises(InputError, match="training would make their codes meaningless"):
        index.train(cloud(50))
    with pytest.raises(InputError, match="ids must be a one-dimensional integer array"):
        index.remove_ids([0.5])
    with pytest.raises(MismatchError, match="d is 16, the binarizer takes vectors of 32"):
        rbegir.IndexRBE(16, binarizer=index.binarizer)
    with rbegir.Index.create(tmp_path / "ids.rbe", index.binarizer) as stored:
        stored.add_codes(index.binarizer.encode_keywords(cloud(2)), ids=[5, 6])
    with pytest.raises(MismatchError, match="are not 0, 1, 2"):
        rbegir.IndexRBE.read(tmp_path / "ids.rbe")
    with rbegir.Index.create(tmp_path / "texts.rbe", HashEncoder()):
        pass
    with pytest.raises(rbegir.RbegirError, match="no model is stored"):
        rbegir.IndexRBE.read(tmp_path / "texts.rbe")
