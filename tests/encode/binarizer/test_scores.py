"""Scores estimate what the metric says of the vectors; codes of every metric rank as it does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rbegir
from rbegir.codes.planes import Codes
from rbegir.codes.score import cosines, keys
from rbegir.encode.binarizer.binarizer import KIND, PLAIN
from rbegir.encode.binarizer.scores import Scoring, calibrated, knots
from rbegir.encode.binarizer.vectors import METRICS
from rbegir.errors import CorruptError, InputError, VersionError
from rbegir.search.hits import Hits
from tests.golden.make import binarized_vectors

DIMS, COUNT = 24, 4000
GOLDEN = Path(__file__).parents[2] / "golden"


def clouds(count: int, seed: int) -> np.ndarray:
    """Vectors with a mean, neighbours, and lengths that differ threefold."""
    centres = np.random.default_rng(7).standard_normal((300, DIMS)) * np.geomspace(1, 0.3, DIMS)
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(0, 300, count)] + 0.4 * rng.standard_normal((count, DIMS)) + 0.2
    return (rows * rng.uniform(0.5, 1.5, (count, 1))).astype(np.float32)


VECTORS, QUERIES = clouds(COUNT, 1), clouds(200, 2)
FITTED: dict[str, rbegir.Binarizer] = {}


def fitted(metric: str) -> rbegir.Binarizer:
    """One Binarizer per metric for all tests of the module."""
    if metric not in FITTED:
        FITTED[metric] = rbegir.Binarizer(DIMS, metric=metric, moves=200).fit(VECTORS)
    return FITTED[metric]


def truth(metric: str, queries: np.ndarray = QUERIES, vectors: np.ndarray = VECTORS) -> np.ndarray:
    """The scores by definition, in floats; products are those of queries of unit length."""
    q, x = queries.astype(np.float64), vectors.astype(np.float64)
    if metric == "l2":
        return -(np.linalg.norm(q[:, None] - x[None], axis=2) ** 2)
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    return q @ (x / np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else x).T


def measured(binarizer: rbegir.Binarizer) -> tuple[np.ndarray, np.ndarray]:
    """Order keys and scores [queries, vectors]."""
    values = binarizer.encode_queries(QUERIES).values()
    order = keys(values, binarizer.encode_keywords(VECTORS))
    return order, binarizer.key_scores(values)(order)


def recall(order: np.ndarray, meant: np.ndarray) -> float:
    best = [np.argsort(-array, axis=1)[:, :10] for array in (order, meant)]
    return float(np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(*best, strict=True)]))


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_the_metric_and_the_stated_error_is_theirs(metric: str) -> None:
    binarizer, meant = fitted(metric), truth(metric)
    order, scores = measured(binarizer)
    hits = np.argsort(-order, axis=1)[:, :10]
    found, true = (np.take_along_axis(array, hits, axis=1) for array in (scores, meant))
    spread = meant.std()
    assert abs(np.mean(found - true)) < 0.05 * spread
    error = np.sqrt(np.mean((found - true) ** 2))
    expected = binarizer.expected
    low, high = expected["score_error_interval"]
    assert low < expected["score_error"] < high
    assert 0.7 * low < error < 1.4 * high
    assert error < 0.25 * spread
    assert abs(recall(order, meant) - expected["recall@10"]) < 0.06
    assert expected["among"] == COUNT
    if metric == "cosine":
        values = binarizer.encode_queries(QUERIES).values()
        plain = np.take_along_axis(cosines(values)(order), hits, axis=1)
        assert error < 0.4 * np.sqrt(np.mean((plain - true) ** 2))
        itself = binarizer.key_scores(values)(keys(values, binarizer.encode_keywords(QUERIES)))
        assert np.diag(itself).mean() > 0.97
        assert itself.max() <= 1


def test_each_metric_finds_what_is_best_by_it() -> None:
    orders = {metric: measured(fitted(metric))[0] for metric in METRICS}
    for metric in METRICS:
        recalls = {other: recall(order, truth(metric)) for other, order in orders.items()}
        assert recalls[metric] > 0.7
        assert all(recalls[metric] > recalls[other] + 0.1 for other in METRICS if other != metric), recalls


@pytest.mark.parametrize("metric", METRICS)
def test_scores_never_fall_as_keys_rise_and_depend_on_their_query_alone(metric: str) -> None:
    binarizer = fitted(metric)
    values = binarizer.encode_queries(QUERIES).values()
    order, scores = measured(binarizer)
    ranked = np.argsort(order, axis=1, kind="stable")
    assert (np.diff(np.take_along_axis(scores, ranked, axis=1), axis=1) >= 0).all()
    for i in (0, 77, 199):
        assert np.array_equal(binarizer.key_scores(values[i : i + 1])(order[i : i + 1])[0], scores[i])
    near = np.arange(-50, 50) + order[:, :1]
    assert (np.diff(binarizer.key_scores(values)(near), axis=1) >= 0).all()
    nothing = np.zeros((1, binarizer.n), np.int16)
    assert np.isfinite(binarizer.key_scores(nothing)(np.zeros((1, 3), np.int64))).all()


def test_the_map_is_the_mean_of_the_truth_and_monotone() -> None:
    rng = np.random.default_rng(0)
    estimate = rng.uniform(-1, 1, 40_000)
    meant = np.tanh(2 * estimate) + 0.1 * rng.standard_normal(len(estimate))
    inputs, outputs = knots(estimate, meant)
    assert (np.diff(inputs) > 0).all()
    assert (np.diff(outputs) >= 0).all()
    at = np.linspace(-0.9, 0.9, 50)
    assert np.abs(np.interp(at, inputs, outputs) - np.tanh(2 * at)).max() < 0.02
    falling = knots(estimate, -meant)
    assert (np.diff(falling[1]) >= 0).all()


def test_an_interval_covers_the_choice_of_keywords() -> None:
    """All queries have the same nearest keywords, so that their number says nothing about the recall."""
    plain = Scoring(np.zeros((1, 1), np.float32), np.zeros((2, 2), np.float32), np.zeros(7, np.float32))
    measured = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        worth, error = rng.standard_normal((2, 2000)) * np.asarray([[1], [0.1]])  # of keywords
        meant = worth + 0.02 * rng.standard_normal((100, 2000))
        read = meant + error
        order, own = (read * 1e6).astype(np.int64), np.zeros(meant.shape, np.bool_)
        measured.append(calibrated(plain, read, meant, order, own).measured)
    for figure, low, high in np.asarray(measured).T[:6].reshape(2, 3, 60):
        expected = np.sqrt(np.mean(figure**2))
        assert np.mean((low < expected) & (expected < high)) > 0.8
        assert np.mean(high - low) < 8 * np.std(figure)


@pytest.mark.parametrize("metric", METRICS)
def test_an_index_gives_these_scores_with_and_without_its_model(metric: str, tmp_path: Path) -> None:
    binarizer = fitted(metric)
    order, scores = measured(binarizer)
    ranked = np.argsort(-order, axis=1, kind="stable")[:, :7]
    expected = np.take_along_axis(scores, ranked, axis=1)
    with rbegir.Index.create(tmp_path / "i.rbe", binarizer) as index:
        index.add_codes(binarizer.encode_keywords(VECTORS))
        assert index.info()["expected"] == binarizer.expected
    asked = binarizer.encode_queries(QUERIES)

    def check(hits: Hits) -> None:
        assert np.array_equal(hits.ids, ranked)
        assert np.array_equal(hits.scores, expected)
        assert hits.to_arrow()["score"].to_pylist() == expected.ravel().tolist()

    with rbegir.Index.open(tmp_path / "i.rbe", read_only=True) as index:
        check(index.search_codes(asked, k=7))  # only the Binarizer of the model is read
        check(index.search_codes(asked.values(), k=7))
        check(index.search(QUERIES, k=7))
        check(index.search_codes(asked, k=7))
    (tmp_path / "i.rbe" / "model" / "model.safetensors").write_bytes(b"damaged")
    with rbegir.Index.open(tmp_path / "i.rbe", read_only=True) as index:
        assert "expected" not in index.info()
        with pytest.raises(CorruptError):
            index.search_codes(asked, k=7)


@pytest.mark.parametrize("metric", METRICS)
def test_saved_and_loaded_scores_alike(metric: str, tmp_path: Path) -> None:
    binarizer = fitted(metric)
    binarizer.save(tmp_path)
    loaded = rbegir.Binarizer.load(tmp_path)
    assert loaded.fingerprint == binarizer.fingerprint
    assert loaded.expected == binarizer.expected
    assert loaded.encode_keywords(VECTORS[:99]) == binarizer.encode_keywords(VECTORS[:99])
    values = loaded.encode_queries(QUERIES).values()
    order = keys(values, loaded.encode_keywords(VECTORS[:99]))
    assert np.array_equal(loaded.key_scores(values)(order), binarizer.key_scores(values)(order))
    back = loaded.inverse_transform(loaded.encode_keywords(VECTORS))
    meant = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True) if metric == "cosine" else VECTORS
    assert np.mean((back - meant) ** 2) < 0.2 * np.mean((meant - meant.mean(axis=0)) ** 2)


@pytest.mark.parametrize("name", ["v2", "v3", "v4-digits", "v4-bytes"])
def test_golden_files_keep_their_codes_and_scores(name: str) -> None:
    directory = GOLDEN / f"binarizer-{name}"
    answers: dict[str, Any] = json.loads((directory / "answers.json").read_text())
    loaded = rbegir.Binarizer.load(directory)
    assert loaded.fingerprint == answers["fingerprint"]
    vectors = binarized_vectors()[:8]
    coded = {"keywords": loaded.encode_keywords(vectors), "queries": loaded.encode_queries(vectors)}
    for side, codes in coded.items():
        assert codes == Codes(np.asarray(answers[side], np.uint64)[:, :, None], 64)
    values = coded["queries"].values()
    order = keys(values, coded["keywords"])
    scores = loaded.key_scores(values)(order)
    if name == "v2":  # not calibrated: the cosines of codes
        assert np.array_equal(scores, cosines(values)(order))
        assert loaded.expected["score_error"] is None
    else:
        assert np.allclose(scores, answers["scores"], rtol=0, atol=1e-12)


def test_an_earlier_reader_is_told_of_the_newer_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = rbegir.Binarizer.load(GOLDEN / "binarizer-v4-digits")
    assert len(loaded.learned_.steps) > 2
    chosen = rbegir.Binarizer.load(GOLDEN / "binarizer-v4-bytes")
    assert (chosen.bytes, chosen.n, chosen.keyword_planes, chosen.effort) == (8, 64, 1, "fast")
    monkeypatch.setattr("rbegir.encode.binarizer.binarizer.KIND", replace(KIND, version=3, older=(1, 2)))
    for name in ("digits", "bytes"):
        with pytest.raises(VersionError, match="format version 4"):
            rbegir.Binarizer.load(GOLDEN / f"binarizer-v4-{name}")


def test_what_is_expected_of_many_vectors_is_found_among_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mean over eight draws; searched among rows that were learned from, it is .012 higher."""
    for name, size in (("AMONG", 256), ("HELD_OUT", 128), ("MANY", 1024)):
        monkeypatch.setattr(f"rbegir.encode.binarizer.binarizer.{name}", size)
    centres = np.random.default_rng(7).standard_normal((200, 48))

    def draw(count: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        rows = centres[rng.integers(0, 200, count)] + 0.5 * rng.standard_normal((count, 48))
        return (rows * np.exp(0.3 * rng.standard_normal((count, 1)))).astype(np.float32)

    gaps = []
    for seed in range(8):
        binarizer = rbegir.Binarizer(48, n=128, metric="ip", moves=10, rounds=4, seed=seed)
        expected = binarizer.fit(draw(1024, seed)).expected
        assert expected["among"] == 256
        queries, vectors = draw(600, 50 + seed), draw(256, 90 + seed)
        order = keys(binarizer.encode_queries(queries).values(), binarizer.encode_keywords(vectors))
        gaps.append(expected["recall@10"] - recall(order, truth("ip", queries, vectors)))
    assert abs(np.mean(gaps)) < 0.006


def test_too_few_vectors_are_not_held_out() -> None:
    binarizer = rbegir.Binarizer(DIMS, moves=20).fit(VECTORS[:300])
    assert binarizer.expected == {
        "metric": "cosine", "score_error": None, "score_error_interval": [None, None],
        "recall@10": None, "recall@10_interval": [None, None], "among": None,
    }  # fmt: skip
    assert isinstance(binarizer.scoring_, Scoring)
    order, scores = measured(binarizer)
    best = np.argsort(-order, axis=1)[:, :10]
    found, meant = (np.take_along_axis(array, best, axis=1) for array in (scores, truth("cosine")))
    assert np.sqrt(np.mean((found - meant) ** 2)) < 0.1


def test_queries_of_their_own_are_calibrated_for() -> None:
    far = -VECTORS[:600] + 1
    binarizer = rbegir.Binarizer(DIMS, moves=50).fit(VECTORS, far)
    values = binarizer.encode_queries(far[:100]).values()
    scores = binarizer.key_scores(values)(keys(values, binarizer.encode_keywords(VECTORS)))
    assert np.sqrt(np.mean((scores - truth("cosine", far[:100])) ** 2)) < 0.1


def test_bytes_choose_the_shape_that_finds_the_most() -> None:
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((3000, 64)).astype(np.float32)
    steep = flat * np.arange(1, 65, dtype=np.float32) ** -0.8
    for vectors, shape in ((flat, (128, 1)), (steep, (64, 2))):
        binarizer = rbegir.Binarizer(bytes=16, moves=30, rounds=3).fit(vectors)
        assert (binarizer.n, binarizer.keyword_planes) == shape
        assert binarizer.get_params()["keyword_planes"] == 2
        assert binarizer.encode_keywords(vectors[:3]).plane_count == shape[1]
        plain = rbegir.Binarizer(n=64, moves=30, rounds=3).fit(vectors)
        low, _ = binarizer.expected["recall@10_interval"]
        assert binarizer.expected["recall@10"] >= plain.expected["recall@10"] > low - 0.2
    assert rbegir.Binarizer(n=64, bytes=16, moves=5, rounds=1).fit(flat).keyword_planes == 2


def test_shapes_that_are_close_are_compared_as_they_would_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few rows and one round, one plane finds more; with all of them two planes do.

    Fits differ a little with the vector instructions that NumPy finds, so both leads must be clear.
    """
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((3000, 64)).astype(np.float32) * np.arange(1, 65, dtype=np.float32) ** -0.5
    monkeypatch.setattr("rbegir.encode.binarizer.binarizer.TRIAL_ROWS", 1000)
    monkeypatch.setattr("rbegir.encode.binarizer.binarizer.TRIAL_ROUNDS", 1)
    found: dict[tuple[int, bool], float] = {}
    for rows, rounds in ((1000, 1), (3000, 3)):
        for n, planes in ((64, 2), (128, 1)):
            one = rbegir.Binarizer(n=n, keyword_planes=planes, moves=30, rounds=rounds)
            found[n, rows == 1000] = one.fit(vectors[:rows]).expected["recall@10"]
    assert found[128, True] > found[64, True] + 0.01
    assert found[128, False] < found[64, False] - 0.01
    chosen = rbegir.Binarizer(bytes=16, moves=30, rounds=3).fit(vectors)
    assert (chosen.n, chosen.keyword_planes) == (64, 2)
    assert chosen.expected["recall@10"] == found[64, False]


def test_a_low_rate_takes_the_whole_mean_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less than 1 bit per dimension, no bit is spent on what all vectors have in common."""
    centres = np.random.default_rng(9).standard_normal((60, 96)) * 0.6 + 0.8

    def world(count: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        spread = rng.standard_normal((count, 96)) * np.arange(1, 97) ** -0.5 * 2
        x = centres[rng.integers(0, 60, count)] + spread
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)

    rows, others, queries = world(1500, 1), world(2000, 2), world(300, 3)
    best = np.argsort(-queries @ others.T, axis=1)[:, :10]

    def recall(binarizer: rbegir.Binarizer) -> float:
        met = keys(binarizer.encode_queries(queries).values(), binarizer.encode_keywords(others))
        found = np.argsort(-met, axis=1)[:, :10]
        return float(np.mean(found[:, :, None] == best[:, None, :]) * 10)

    def fitted() -> rbegir.Binarizer:
        return rbegir.Binarizer(n=64, keyword_planes=1, rounds=3, moves=20).fit(rows)

    chosen = fitted()
    mean = np.linalg.norm(rows.mean(axis=0))
    assert np.linalg.norm(chosen.learned_.mean) == pytest.approx(mean, rel=0.01)
    monkeypatch.setattr("rbegir.encode.binarizer.binarizer.LOW_RATE", (PLAIN,))
    plain = fitted()
    assert np.linalg.norm(plain.learned_.mean) == pytest.approx(0.7 * mean, rel=0.01)
    assert recall(chosen) > recall(plain) + 0.015


def test_progress_is_that_of_all_the_work() -> None:
    rng = np.random.default_rng(0)
    digits, few = {"n": 64, "keyword_planes": 4}, rng.standard_normal((700, 12))
    for params in ({"bytes": 16}, digits, {"metric": "l2"}, {}):
        shares: list[float] = []
        rbegir.Binarizer(moves=5, rounds=3, **params).fit(few, notify=shares.append)
        assert shares == sorted(shares)
        assert 0 < shares[0] < 0.4
        assert shares[-1] == pytest.approx(1)


def test_chosen_shapes_are_stored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    binarizer = rbegir.Binarizer(bytes=16, moves=30, rounds=3).fit(rng.standard_normal((3000, 64)))
    binarizer.save(tmp_path)
    loaded = rbegir.Binarizer.load(tmp_path)
    assert (loaded.n, loaded.keyword_planes) == (binarizer.n, binarizer.keyword_planes) == (128, 1)
    assert loaded.fingerprint == binarizer.fingerprint


def test_wrong_arguments_are_refused() -> None:
    for params, message in (
        ({"metric": "euclid"}, "metric must be one of cosine, ip, l2, got 'euclid'"),
        ({"bytes": 13}, "no code takes 13 bytes"),
        ({"bytes": 4}, "bytes must be a whole number of at least 8, got 4"),
        ({"n": 256, "bytes": 16}, "no code of n = 256 takes 16 bytes"),
    ):
        with pytest.raises(InputError, match=message):
            rbegir.Binarizer(**params).fit(VECTORS)
    huge = VECTORS.astype(np.float64)
    huge[17] *= 1e25
    with pytest.raises(InputError, match=r"row 17 of X is longer than 1e\+15 .*divide all vectors"):
        fitted("ip").encode_keywords(huge)
    with pytest.raises(InputError, match=r"vectors differ by less than 1e-15 .*multiply all vectors"):
        rbegir.Binarizer(metric="l2").fit(VECTORS * np.float32(1e-30))
    with pytest.raises(InputError, match=r"X is not an array \[count, dims\]: .*inhomogeneous"):
        rbegir.Binarizer().fit([[1, 2], [3]])
    for few in (VECTORS[:0], VECTORS[:1]):
        with pytest.raises(InputError, match=f"y has n_samples={len(few)}, fitting needs at least 2 rows"):
            rbegir.Binarizer().fit(VECTORS, few)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("what", ["zero", "constant", "repeated", "distant", "long", "short", "few and long"])
def test_degenerate_vectors_have_right_scores(metric: str, what: str) -> None:
    rows = np.random.default_rng(3).standard_normal((700, 16))
    rows = {
        "zero": rows * 0,
        "constant": rows * 0 + 3,
        "repeated": np.repeat(rows[:5], 140, axis=0),
        "distant": rows + 1e4,  # all cosines are 1, and all products nearly equal
        "long": rows * 1e14,
        "short": rows * 1e-14,
        "few and long": rows[:300] * 1e9,
    }[what]
    binarizer = rbegir.Binarizer(metric=metric, rounds=3, moves=20).fit(rows, progress=False)
    values = binarizer.encode_queries(rows[::40]).values()
    scores = binarizer.key_scores(values)(keys(values, binarizer.encode_keywords(rows)))
    meant = np.zeros_like(scores) if what == "zero" else truth(metric, rows[::40], rows)
    assert np.sqrt(np.mean((scores - meant) ** 2)) <= 0.05 * np.abs(meant).max()
    interval = binarizer.expected["recall@10_interval"]
    assert what.startswith("few") or 0 <= interval[0] <= interval[1] <= 1
