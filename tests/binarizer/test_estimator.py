"""The Binarizer as an encoder: codes that rank as the vectors do, whatever the input looks like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rbegir
from rbegir.errors import CorruptError, InputError

DIMS = 48


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    rng = np.random.default_rng(3)
    return (rng.standard_normal((2000, DIMS)) + 0.3).astype(np.float32)


@pytest.fixture(scope="module")
def fitted(vectors: np.ndarray) -> rbegir.Binarizer:
    return rbegir.Binarizer(DIMS).fit(vectors)


def test_saved_and_loaded_encodes_alike(
    fitted: rbegir.Binarizer, vectors: np.ndarray, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "b")
    loaded = rbegir.Binarizer.load(tmp_path / "b")
    assert loaded.fingerprint == fitted.fingerprint
    assert loaded.get_params() == fitted.get_params()
    assert loaded.encode_keywords(vectors) == fitted.encode_keywords(vectors)
    assert loaded.encode_queries(vectors) == fitted.encode_queries(vectors)


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


def test_an_index_is_searched_with_vectors(
    fitted: rbegir.Binarizer, vectors: np.ndarray, tmp_path: Path
) -> None:
    with rbegir.Index.create(tmp_path / "i.rbe", fitted) as index:
        index.add_codes(fitted.encode_keywords(vectors))
    with rbegir.Index.open(tmp_path / "i.rbe", read_only=True) as index:
        hits = index.search(vectors[:100], k=1)
    assert (hits.ids[:, 0] == np.arange(100)).mean() > 0.98


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((3, DIMS - 1), np.float32), "has 47 features, but Binarizer is expecting 48"),
        (np.full((3, DIMS), np.nan, np.float32), "NaN or infinity"),
        (np.zeros((3, DIMS), np.uint16), "bfloat16"),
        (np.zeros(DIMS, np.float32), "Expected 2D array"),
        (["a text"], "must hold numbers"),
    ],
)
def test_bad_vectors_are_refused(fitted: rbegir.Binarizer, X: object, message: str) -> None:
    for encode in (fitted.encode_keywords, fitted.encode_queries, fitted.transform):
        with pytest.raises(InputError, match=message):
            encode(X)
