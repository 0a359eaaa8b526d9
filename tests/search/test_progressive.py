"""Progressive search: coarse scan, exact refinement, an honest recall."""

import numpy as np
import pytest

from rbegir.base import masks
from rbegir.codes.layout import pack
from rbegir.codes.planes import Codes
from rbegir.errors import InputError
from rbegir.search.backend import Partition, check_candidates, estimate_recall
from rbegir.search.cpu import CpuBackend
from rbegir.search.partition import recall_of
from rbegir.search.reference import ReferenceBackend


def make(seed: int, counts: list[int], n: int, planes: int, keep: float = 1.0) -> list[Partition]:
    rng = np.random.default_rng(seed)
    parts = []
    for count in counts:
        codes = Codes(rng.integers(0, 2**64, (planes, count, n // 64), dtype=np.uint64), n)
        mask = None if keep == 1.0 else masks.from_bools(rng.random(count) < keep)
        parts.append(Partition(pack(codes), count, mask))
    return parts


@pytest.mark.parametrize(
    ("n", "planes", "first"), [(64, 2, 1), (64, 2, 2), (128, 4, 1), (128, 4, 3), (64, 1, 1)]
)
@pytest.mark.parametrize("keep", [1.0, 0.2])
def test_equals_the_reference(n: int, planes: int, first: int, keep: float) -> None:
    parts = make(3, [700, 0, 1301], n, planes, keep)
    values = np.random.default_rng(5).integers(-7, 8, (4, n)).astype(np.int16)
    for k, candidates in ((1, 1), (10, 50), (10, None), (5000, None)):
        for measure in (False, True):
            settings = {"planes": first, "candidates": candidates, "measure": measure}
            expected = ReferenceBackend(n, planes).search_progressive(parts, values, k, **settings)
            got = CpuBackend(n, planes).search_progressive(parts, values, k, **settings)
            np.testing.assert_array_equal(got.candidates.keys, expected.candidates.keys)
            np.testing.assert_array_equal(got.candidates.positions, expected.candidates.positions)
            assert got.recall == expected.recall


def test_all_planes_are_exact() -> None:
    parts = make(1, [5000], 64, 2)
    values = np.random.default_rng(5).integers(-7, 8, (4, 64)).astype(np.int16)
    backend = CpuBackend(64, 2)
    found = backend.search_progressive(parts, values, 10, planes=2, candidates=10)
    np.testing.assert_array_equal(found.candidates.positions, backend.search(parts, values, 10).positions)
    assert found.recall == 1.0


def test_more_candidates_more_recall() -> None:
    """The measured recall grows to 1 with the candidates, and the estimate is close to it."""
    parts = make(9, [200_000], 64, 2)
    values = (2 * np.random.default_rng(6).integers(0, 8, (16, 64)) - 7).astype(np.int16)
    backend = CpuBackend(64, 2)
    measured = []
    for candidates in (100, 400, 1600, 6400, 200_000):
        found = backend.search_progressive(parts, values, 100, candidates=candidates, measure=True)
        estimated = backend.search_progressive(parts, values, 100, candidates=candidates)
        measured.append(found.recall)
        if candidates >= 1000:
            assert estimated.recall == pytest.approx(found.recall, abs=0.15 if candidates < 5000 else 0.03)
    assert measured == sorted(measured)
    assert measured[0] < 0.6
    assert measured[3] > 0.97
    assert measured[4] == 1.0


def test_recall_arithmetic() -> None:
    assert recall_of(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [3, 9]])) == 0.75
    assert recall_of(np.zeros((2, 0)), np.zeros((2, 0))) == 1.0
    ranked = np.arange(8)[None]
    assert estimate_recall(np.array([[0, 5]]), ranked, 8) == 1.0  # all keywords were candidates
    # ranks 2, 3, 4 and 6 of 8: a = 1, 2, 1, so r₀ = ½, r₁ = 2, and one octave more has 1 · ½ · ¼
    assert estimate_recall(np.array([[1, 2, 3, 5]]), ranked, 16) == pytest.approx(4 / (4 + 0.125))
    assert estimate_recall(np.zeros((1, 0), dtype=np.int64), ranked, 16) == 1.0
    assert check_candidates(None, 10) == 1000
    assert check_candidates(None, 1000) == 20_000


@pytest.mark.parametrize("backend", [CpuBackend, ReferenceBackend])
def test_refuses(backend) -> None:
    parts = make(0, [100], 64, 2)
    values = np.zeros((1, 64), np.int16)
    for settings, message in (
        ({"planes": 0}, "planes must be a whole number from 1 to 2, got 0"),
        ({"planes": 3}, "planes must be a whole number from 1 to 2, got 3"),
        ({"candidates": 4}, "candidates must be a whole number of at least 5, got 4"),
        ({"candidates": 9.0}, r"candidates must be a whole number of at least 5, got 9\.0"),
    ):
        with pytest.raises(InputError, match=message):
            backend(64, 2).search_progressive(parts, values, 5, **settings)
