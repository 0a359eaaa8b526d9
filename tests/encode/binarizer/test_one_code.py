"""A code is a function of the vector and the Binarizer alone: not of the batch, the threads or the CPU."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from rbegir._native import _core
from rbegir.encode.binarizer import Binarizer, learn
from rbegir.encode.binarizer import vectors as products
from rbegir.encode.binarizer.binarizer import PLAIN, Choice
from rbegir.encode.binarizer.learn import GAUSSIAN_STEP, SPREAD, odd
from tests.isa import every_isa


def vectors(count: int, dims: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, dims), np.float32) * np.geomspace(1, 0.1, dims).astype(np.float32)


def fitted(dims: int, **settings: int | None) -> Binarizer:
    binarizer = Binarizer(dims, rounds=3, **settings).fit(vectors(800, dims, seed=1))
    if digits := learn.digit_count(dims, *binarizer.shape_):  # whatever fitting chose
        choice = Choice(binarizer.shape_, 0.0, *PLAIN, digits)
        binarizer._learn(vectors(800, dims, seed=1), None, choice, 3, lambda share: None)
        assert len(binarizer.learned_.steps)
    return binarizer


def codes(binarizer: Binarizer, x: np.ndarray) -> np.ndarray:
    """Keyword and query codes as odd integers [count, 2·n]."""
    return np.hstack([binarizer.encode_keywords(x).values(), binarizer.encode_queries(x).values()])


@pytest.mark.parametrize(("dims", "planes"), [(5, 2), (20, 4), (32, 1), (50, 4), (130, 2)])
def test_batches_and_threads_change_nothing(dims: int, planes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    binarizer, x = fitted(dims, keyword_planes=planes, moves=20), vectors(3000, dims)
    whole = codes(binarizer, x)
    rng = np.random.default_rng(2)
    order = rng.permutation(len(x))
    assert np.array_equal(codes(binarizer, x[order]), whole[order])
    for threads in (1, 2):
        for module in (learn, products):
            monkeypatch.setattr(module, "cpu_count", lambda threads=threads: threads)
        cuts = np.sort(rng.integers(0, len(x), 30))
        parts = [codes(binarizer, part) for part in np.split(x, cuts) if len(part)]
        assert np.array_equal(np.concatenate(parts), whole)
    for i in range(0, len(x), 100):
        assert np.array_equal(codes(binarizer, x[i : i + 1])[0], whole[i])


@every_isa()
@pytest.mark.parametrize(("dims", "planes"), [(50, 1), (50, 3), (20, 4)])
def test_instruction_sets_change_nothing(
    isa: str, dims: int, planes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    binarizer, x = fitted(dims, keyword_planes=planes, moves=50), vectors(500, dims)
    assert (len(binarizer.learned_.steps) > 0) == (dims == 20)  # a high rate: digits
    monkeypatch.setenv("RBEGIR_ISA", "portable")
    expected = codes(binarizer, x)
    monkeypatch.setenv("RBEGIR_ISA", isa)
    assert np.array_equal(codes(binarizer, x), expected)


def test_the_type_of_a_vector_changes_nothing() -> None:
    binarizer, x = fitted(50), vectors(500, 50)
    assert np.array_equal(codes(binarizer, x.astype(np.float64)), codes(binarizer, x))
    half = x.astype(np.float16)
    assert np.array_equal(codes(binarizer, half), codes(binarizer, half.astype(np.float32)))


def rounded(value: Fraction) -> float:
    """The float32 nearest to an exact number, ties to even; numbers of the tests are never subnormal."""
    near = np.float32(float(value))
    around = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    return float(
        min([near, *around], key=lambda f: (abs(Fraction(float(f)) - value), int(f.view(np.uint32)) & 1))
    )


@every_isa()
def test_products_are_chains_of_fused_operations(isa: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((31, 9), np.float32), rng.standard_normal((9, 19), np.float32)
    got = _core.product(a, b, 1, isa)
    for i, j in ((0, 0), (5, 18), (6, 16), (30, 3)):
        total = 0.0
        for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True):
            total = rounded(Fraction(x) * Fraction(y) + Fraction(total))
        assert got[i, j] == total


@every_isa()
def test_inner_products_are_sixteen_chains(isa: str) -> None:
    a, b = np.random.default_rng(4).standard_normal((2, 3, 37), np.float32)
    got = _core.dots(a, b, isa)
    for i in range(3):
        chains = [0.0] * 16
        for at, (x, y) in enumerate(zip(a[i].tolist(), b[i].tolist(), strict=True)):
            chains[at % 16] = rounded(Fraction(x) * Fraction(y) + Fraction(chains[at % 16]))
        while len(chains) > 1:
            half = len(chains) // 2
            chains = [
                rounded(Fraction(x) + Fraction(y)) for x, y in zip(chains[:half], chains[half:], strict=True)
            ]
        assert got[i] == chains[0]


@every_isa()
@pytest.mark.parametrize(
    "shape", [(0, 4, 16), (1, 0, 3), (1, 7, 64), (23, 300, 80), (97, 520, 65), (200, 5, 1)]
)
def test_products_of_all_shapes(isa: str, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((depth, columns), np.float32)
    got = _core.product(a, b, 2, isa)
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=0, atol=1e-4)
    for i in range(rows):
        assert np.array_equal(_core.product(a[i : i + 1], b, 1, "portable")[0], got[i])


@every_isa()
@pytest.mark.parametrize("planes", [2, 4, 8])
def test_the_nearest_rounding_is_the_best_of_all_steps(isa: str, planes: int) -> None:
    """Against the formula in NumPy, with the inner products that the tests above define."""
    y = np.random.default_rng(6).standard_normal((130, 67), np.float32) ** 3
    y[5] = 0
    y[6, :3] = 50  # beyond the largest odd integer
    steps = (GAUSSIAN_STEP[planes] * SPREAD).astype(np.float32)
    spread = np.sqrt(_core.dots(y, y, isa) / np.float32(67))[:, None]
    scaled = np.divide(y, spread, out=np.zeros_like(y), where=spread > 0)
    tried = np.stack([odd(scaled / step, planes) for step in steps])  # [steps, rows, n]
    agreement = [_core.dots(scaled, b, isa) / np.sqrt(_core.dots(b, b, isa)) for b in tried]
    best = tried[np.argmax(agreement, axis=0), np.arange(len(y))]
    assert np.array_equal(_core.nearest(y, planes, steps, 2, isa), best)


def test_wrong_shapes_are_refused() -> None:
    a = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="a must be"):
        _core.product(a, a, 1, "portable")
    with pytest.raises(ValueError, match="planes must be 1 to 8"):
        _core.nearest(a, 9, a[0], 1, "portable")
    with pytest.raises(ValueError, match="one shape"):
        _core.dots(a, a[:1], "portable")
