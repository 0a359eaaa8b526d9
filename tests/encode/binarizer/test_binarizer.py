"""The Binarizer as an encoder: codes that rank as the vectors do, kept on disk whole, bad input refused."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import rbegir
from rbegir.encode.binarizer import Binarizer, learn
from rbegir.encode.binarizer.binarizer import KIND, shapes
from rbegir.encode.binarizer.vectors import rerank
from rbegir.encode.directory import write_pair
from rbegir.errors import CorruptError, FileError, InputError, MismatchError, VersionError

DIMS = 48


def clustered(count: int, dims: int, seed: int) -> np.ndarray:
    """Vectors with a mean, a falling spectrum and neighbours: what embeddings look like."""
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, dims + 1) ** -0.4
    centres = rng.standard_normal((count // 8, dims)) * spectrum
    spread = rng.standard_normal((count, dims)) * spectrum * 0.5
    return (centres[np.arange(count) % len(centres)] + spread + 0.1).astype(np.float32)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return clustered(3000, DIMS, 3)


@pytest.fixture(scope="module")
def fitted(vectors: np.ndarray) -> rbegir.Binarizer:
    return rbegir.Binarizer(DIMS).fit(vectors)


def true_top(queries: np.ndarray, vectors: np.ndarray, k: int) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.argsort(-(queries @ unit.T), axis=1)[:, :k]


def recall(binarizer: rbegir.Binarizer, queries: np.ndarray, vectors: np.ndarray, planes: int) -> float:
    """Recall@10 by the score's definition, in NumPy, with the first planes of the keywords."""
    values = binarizer.encode_keywords(vectors).first_planes(planes).values().astype(np.float64)
    asked = binarizer.encode_queries(queries).values().astype(np.float64)
    found = np.argsort(-(asked @ (values / np.linalg.norm(values, axis=1, keepdims=True)).T), axis=1)[:, :10]
    truth = true_top(queries, vectors, 10)
    return float(np.mean([len(np.intersect1d(f, t)) / 10 for f, t in zip(found, truth, strict=True)]))


def scalar_recall(queries: np.ndarray, vectors: np.ndarray, bits: int) -> float:
    """The same for a random rotation and the Gaussian's best levels, queries in floats."""
    from rbegir.lab.bench.quantizers import scalar

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    outcome = scalar(unit, unit, 8 * bits, seed=0)  # 64 dimensions · bits / 8
    assert outcome is not None
    assert outcome.decoded is not None
    found = np.argsort(-(queries @ outcome.decoded.T), axis=1)[:, :10]
    truth = true_top(queries, vectors, 10)
    return float(np.mean([len(np.intersect1d(f, t)) / 10 for f, t in zip(found, truth, strict=True)]))


def test_learning_beats_the_start_and_the_start_beats_scalar_quantisation(vectors: np.ndarray) -> None:
    queries = clustered(400, DIMS, 4)[:200]
    start = recall(rbegir.Binarizer(DIMS, rounds=0).fit(vectors), queries, vectors, 2)
    learned = rbegir.Binarizer(DIMS).fit(vectors)
    assert start > scalar_recall(queries, vectors, 2) + 0.01
    assert recall(learned, queries, vectors, 2) > start + 0.01
    hasty = rbegir.Binarizer(DIMS, moves=0).fit(vectors)
    assert recall(learned, queries, vectors, 2) > recall(hasty, queries, vectors, 2) + 0.01


def test_every_plane_adds(vectors: np.ndarray) -> None:
    queries = clustered(400, DIMS, 4)[:200]
    binarizer = rbegir.Binarizer(DIMS, keyword_planes=3).fit(vectors)
    by_planes = [recall(binarizer, queries, vectors, planes) for planes in (1, 2, 3)]
    assert by_planes[0] > 0.25
    assert by_planes[1] > by_planes[0] + 0.1
    assert by_planes[2] > by_planes[1] + 0.03


@pytest.mark.parametrize(
    ("dims", "n", "planes"), [(5, 64, 1), (70, 64, 2), (64, 128, 1), (33, 64, 4), (96, 64, 3)]
)
def test_any_shape_finds_itself(dims: int, n: int, planes: int, tmp_path: Path) -> None:
    vectors = clustered(600, dims, 7)
    binarizer = rbegir.Binarizer(dims, n=n, keyword_planes=planes).fit(vectors)
    codes = binarizer.encode_keywords(vectors)
    assert (codes.n, codes.plane_count, len(codes)) == (n, planes, 600)
    with rbegir.Index.create(tmp_path / "i.rbe", binarizer) as index:
        index.add_codes(codes)
        hits = index.search(vectors, k=10)
    assert np.mean((hits.ids == np.arange(600)[:, None]).any(axis=1)) > (0.9 if dims > 5 else 0.5)


def test_an_index_keeps_its_binarizer(fitted: rbegir.Binarizer, vectors: np.ndarray, tmp_path: Path) -> None:
    with rbegir.Index.create(tmp_path / "i.rbe", fitted) as index:
        index.add_codes(fitted.encode_keywords(vectors))
    with rbegir.Index.open(tmp_path / "i.rbe", read_only=True) as index:
        assert index.model.fingerprint == fitted.fingerprint
        by_vectors = index.search(vectors[:50], k=5)
        by_codes = index.search_codes(fitted.encode_queries(vectors[:50]), k=5)
        with pytest.raises(InputError, match="is searched with vectors, got a text"):
            index.search("a text", k=5)
    assert np.array_equal(by_vectors.ids, by_codes.ids)
    other = rbegir.Binarizer(DIMS, seed=1).fit(vectors)
    with pytest.raises(MismatchError, match="fingerprint"):
        rbegir.Index.open(tmp_path / "i.rbe", model=other)


def test_reranking_gives_the_order_of_the_vectors(fitted: rbegir.Binarizer, vectors: np.ndarray) -> None:
    queries = clustered(80, DIMS, 5)[:20]
    every = np.tile(np.arange(len(vectors)), (20, 1))
    rows, cosines = rerank(queries, every, vectors, k=10)
    assert np.array_equal(
        rows, true_top(queries / np.linalg.norm(queries, axis=1, keepdims=True), vectors, 10)
    )
    assert (np.diff(cosines, axis=1) <= 0).all()
    for bad, message in ((every[:3], "rows must be integers"), (every + len(vectors), "rows must be from 0")):
        with pytest.raises(InputError, match=message):
            rerank(queries, bad, vectors)
    with pytest.raises(InputError, match="k must be from 1"):
        rerank(queries, every[:, :4], vectors, k=5)


def test_saved_and_loaded_encodes_alike(
    fitted: rbegir.Binarizer, vectors: np.ndarray, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "b")
    loaded = rbegir.Binarizer.load(tmp_path / "b")
    assert loaded.fingerprint == fitted.fingerprint
    assert loaded.get_params() == fitted.get_params()
    assert loaded.encode_keywords(vectors) == fitted.encode_keywords(vectors)
    assert loaded.encode_queries(vectors) == fitted.encode_queries(vectors)
    assert np.array_equal(
        loaded.inverse_transform(loaded.encode_keywords(vectors[:9])),
        fitted.inverse_transform(fitted.encode_keywords(vectors[:9])),
    )


def test_errors_along_the_vector_count_more(vectors: np.ndarray) -> None:
    """What the scores of near queries feel varies less than in codes that minimise the plain error, and
    what it costs across the vector does not eat that up."""
    queries = clustered(400, DIMS, 4)[:200]
    fitted = rbegir.Binarizer(DIMS).fit(vectors)
    plain = rbegir.Binarizer(DIMS).fit(vectors)
    plain.learned_ = plain.learned_._replace(along=np.zeros(2, np.float32))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    spreads, recalls = [], []
    for binarizer in (fitted, plain):
        b = binarizer.encode_keywords(vectors).values().astype(np.float32)
        b /= np.linalg.norm(b, axis=1, keepdims=True)
        mean, query = binarizer.learned_.mean, binarizer.learned_.query
        spreads.append(np.std(np.sum(unit * (unit - mean - b @ query.T), axis=1)))
        recalls.append(recall(binarizer, queries, vectors, 2))
    assert spreads[0] < 0.8 * spreads[1]
    assert recalls[0] > recalls[1] - 0.002


def test_a_file_of_the_first_version_keeps_its_codes(
    fitted: rbegir.Binarizer, vectors: np.ndarray, tmp_path: Path
) -> None:
    old = rbegir.Binarizer(DIMS).fit(vectors)
    tensors = {name: array for name, array in old._tensors().items() if name != "along"}
    first = dataclasses.replace(KIND, version=1)
    print_ = write_pair(tmp_path / "v1", first, old._settings(), tensors)
    loaded = rbegir.Binarizer.load(tmp_path / "v1")
    assert loaded.fingerprint == print_ != fitted.fingerprint
    loaded.save(tmp_path / "v2")
    assert rbegir.Binarizer.load(tmp_path / "v2").fingerprint == print_
    old.learned_ = old.learned_._replace(along=np.zeros(2, np.float32))
    assert loaded.encode_keywords(vectors) == old.encode_keywords(vectors)


def test_a_flipped_byte_is_refused(fitted: rbegir.Binarizer, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    for name in ("config.json", "model.safetensors"):
        path = tmp_path / name
        whole = path.read_bytes()
        for at in (len(whole) // 2, len(whole) - 3):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(CorruptError):
                rbegir.Binarizer.load(tmp_path)
        path.write_bytes(whole)
    assert rbegir.Binarizer.load(tmp_path).fingerprint == fitted.fingerprint


def test_what_is_no_binarizer_is_refused(fitted: rbegir.Binarizer, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no binarizer at"):
        rbegir.Binarizer.load(tmp_path / "nowhere")
    fitted.save(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace(KIND.format, "rbegir-model"))
    with pytest.raises(FileError, match="not the config of a binarizer"):
        rbegir.Binarizer.load(tmp_path)
    (tmp_path / "config.json").write_text(text.replace(f'"version": {KIND.version}', '"version": 9'))
    with pytest.raises(VersionError, match="format version 9"):
        rbegir.Binarizer.load(tmp_path)


def test_shapes_fill_the_bytes() -> None:
    assert shapes(16) == [(128, 1), (64, 2)]
    assert shapes(96) == [(768, 1), (384, 2), (256, 3), (192, 4)]
    assert shapes(192) == [(768, 2), (512, 3), (384, 4)]
    with pytest.raises(InputError, match="no code takes 13 bytes"):
        shapes(13)


def test_more_planes_lose_less(vectors: np.ndarray) -> None:
    one, two, three = (
        rbegir.Binarizer(keyword_planes=p, moves=50).fit(vectors).error(vectors) for p in (1, 2, 3)
    )
    assert 0 < three < two < one < 1


def test_more_effort_finds_better_codes(vectors: np.ndarray) -> None:
    ways = {effort: Binarizer(n=64, effort=effort).fit(vectors) for effort in ("fast", "default", "best")}
    errors = {effort: way.error(vectors) for effort, way in ways.items()}
    assert errors["best"] < errors["default"] < errors["fast"]
    by_hand = Binarizer(n=64, moves=(1 << 17) // 64 // 8).fit(vectors)
    assert ways["fast"].encode_keywords(vectors) == by_hand.encode_keywords(vectors)
    both = Binarizer(n=64, moves=(1 << 17) // 64 // 8, effort="best").fit(vectors)
    assert both.encode_keywords(vectors) == by_hand.encode_keywords(vectors)
    with pytest.raises(InputError, match="effort must be one of fast, default, best, got 'much'"):
        Binarizer(effort="much").fit(vectors)


def digits_by_fractions(y: np.ndarray, planes: int, count: int, step: float) -> list[int]:
    """Numbers [size] written with `count` digits of odd integers, in exact arithmetic."""
    limit, found = 2**planes - 1, []
    rest = [Fraction(float(value)) / Fraction(step) for value in y]
    for _ in range(count):
        digit = [max(-limit, min(limit, 2 * math.floor(value / 2) + 1)) for value in rest]
        rest = [(value - d) * 2**planes for value, d in zip(rest, digit, strict=True)]
        found += digit
    return found


@pytest.mark.parametrize(("planes", "count"), [(4, 2), (3, 2), (2, 4)])
def test_digits_write_what_the_rounding_before_them_left(planes: int, count: int) -> None:
    size, n = 5, 5 * count + 1
    y = np.zeros((40, n), np.float32)
    y[:, :size] = np.random.default_rng(0).integers(-4000, 4000, (40, size)) / np.float32(256)
    found = learn.in_digits(y, planes, np.asarray([count, 0, 2], np.float32))  # a step that divides exactly
    for row, code in zip(y, found, strict=True):
        assert code.tolist() == [*digits_by_fractions(row[:size], planes, count, 2.0), 1]


def test_of_several_steps_the_length_that_is_meant_decides() -> None:
    y = np.random.default_rng(1).standard_normal((50, 16)).astype(np.float32) * 8
    steps = (0.5, 1.0, 2.0)
    ways = [learn.in_digits(y, 4, np.asarray([2, 0, step], np.float32)) for step in steps]
    missed = [np.abs(np.linalg.norm(b, axis=1) * step - 30) for b, step in zip(ways, steps, strict=True)]
    chosen = np.argmin(missed, axis=0)
    assert len(set(chosen)) > 1
    found = learn.in_digits(y, 4, np.asarray([2, 30, *steps], np.float32))
    assert np.array_equal(found, np.stack(ways)[chosen, np.arange(50)])


def test_a_high_rate_takes_digits_and_keeps_them_on_disk(tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((3000, 30)).astype(np.float32)
    binarizer = Binarizer(n=64, keyword_planes=4, moves=16).fit(x)
    assert int(binarizer.learned_.steps[0]) == 2
    near = binarizer.inverse_transform(binarizer.encode_keywords(x))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert np.mean(np.sum(near * unit, axis=1)) > 0.9995
    binarizer.save(tmp_path / "digits")
    same = Binarizer.load(tmp_path / "digits")
    assert same.fingerprint == binarizer.fingerprint
    assert same.encode_keywords(x[:99]) == binarizer.encode_keywords(x[:99])
    plain = Binarizer(n=64, keyword_planes=2, moves=16).fit(x)
    assert not len(plain.learned_.steps)
