"""Input of every kind: what is taken is taken alike, what is not is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rbegir
from rbegir.encode.binarizer import vectors as module
from rbegir.errors import InputError

DIMS = 40


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((500, DIMS)).astype(np.float32)


@pytest.fixture(scope="module")
def fitted(rows: np.ndarray) -> rbegir.Binarizer:
    return rbegir.Binarizer(DIMS, rounds=2).fit(rows)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((3, DIMS - 1), np.float32), "has 39 features, but Binarizer is expecting 40"),
        (np.zeros((3, DIMS), np.uint16), "may be bfloat16 in disguise"),
        (np.zeros((3, DIMS), np.complex64), "Complex data not supported"),
        (np.zeros(DIMS, np.float32), "Expected 2D array"),
        (np.zeros((3, 0), np.float32), "0 feature"),
        (["a text"], "must hold numbers"),
        (np.array([["a"] * DIMS], dtype=object), "must hold numbers, got objects"),
    ],
)
def test_bad_vectors_are_refused(fitted: rbegir.Binarizer, X: object, message: str) -> None:
    for encode in (fitted.encode_keywords, fitted.encode_queries, fitted.transform, fitted.error):
        with pytest.raises(InputError, match=message):
            encode(X)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_bad_row_is_named(fitted: rbegir.Binarizer, rows: np.ndarray, value: float) -> None:
    bad = rows.copy()
    bad[[77, 300], 5] = value
    for use in (fitted.encode_keywords, fitted.encode_queries, rbegir.Binarizer().fit):
        with pytest.raises(InputError, match=r"NaN or infinity .* row 77"):
            use(bad)


def test_precisions_agree(fitted: rbegir.Binarizer, rows: np.ndarray) -> None:
    half = rows.astype(np.float16)
    expected = fitted.encode_keywords(half.astype(np.float32))
    assert fitted.encode_keywords(half) == expected
    # Lengths are then divided by in float64 and differ in the last bit, which may tip a search.
    wide = fitted.encode_keywords(half.astype(np.float64))
    assert (wide.values() == expected.values()).all(axis=1).mean() > 0.98
    assert fitted.encode_keywords(torch.from_numpy(half)) == expected
    brain = torch.from_numpy(rows).bfloat16()
    assert fitted.encode_keywords(brain) == fitted.encode_keywords(brain.float().numpy())


def test_length_does_not_count_however_large(fitted: rbegir.Binarizer, rows: np.ndarray) -> None:
    expected = fitted.encode_keywords(rows)
    for factor in (2.0**-100, 2.0**100):
        assert fitted.encode_keywords(rows * np.float32(factor)) == expected


def test_zero_rows_and_constant_dimensions(rows: np.ndarray) -> None:
    flat = rows.copy()
    flat[:, 10:] = 0.5  # three quarters of the dimensions never change
    flat[3] = 0
    binarizer = rbegir.Binarizer(rounds=2).fit(flat)
    codes = binarizer.encode_keywords(flat)
    assert len(codes) == len(flat)
    assert np.isfinite(binarizer.inverse_transform(codes)).all()
    same = np.ones((50, 8), np.float32)  # no variance at all
    assert len(rbegir.Binarizer(rounds=2).fit(same).encode_keywords(same)) == 50


def test_too_few_rows_and_none(fitted: rbegir.Binarizer, rows: np.ndarray) -> None:
    with pytest.raises(InputError, match="n_samples=1, fitting needs at least 2"):
        rbegir.Binarizer().fit(rows[:1])
    assert len(fitted.encode_keywords(rows[:0])) == 0
    assert len(rbegir.Binarizer().fit(rows[:7]).encode_keywords(rows)) == 500  # fewer rows than dimensions


def test_a_mapped_file_is_read_in_blocks(
    fitted: rbegir.Binarizer, rows: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", rows)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = fitted.encode_keywords(rows)
    read: list[int] = []
    original = module.unit

    def counted(block: np.ndarray, name: str, start: int = 0) -> np.ndarray:
        read.append(len(block))
        return original(block, name, start)

    monkeypatch.setattr(module, "unit", counted)
    monkeypatch.setattr(module, "BLOCK_VALUES", 64 * DIMS)
    assert np.array_equal(fitted.encode_keywords(mapped).signs(), whole.signs())
    assert read == [64] * 7 + [52]
    drawn = module.sample(mapped, 100, seed=1)
    assert drawn.shape == (100, DIMS)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert all(np.isclose(unit, row, atol=1e-6).all(axis=1).sum() == 1 for row in drawn)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"keyword_planes": 5}, "keyword_planes must be a whole number from 1 to 4, got 5"),
        ({"query_planes": 0}, "query_planes must be a whole number from 1 to 8, got 0"),
        ({"n": 100}, "n must be a multiple of 64"),
        ({"moves": -1}, "moves must be a whole number of at least 0, got -1"),
        ({"rounds": 1.5}, "rounds must be a whole number of at least 0, got 1.5"),
        ({"dims": 39}, "has 40 features, but Binarizer is expecting 39"),
    ],
)
def test_bad_parameters_are_refused_by_fit(rows: np.ndarray, params: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rbegir.Binarizer(**params).fit(rows)
