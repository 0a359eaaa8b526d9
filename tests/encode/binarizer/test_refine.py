"""The native search for codes against plain Python: never worse than its start, right about optima."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rbegir._native import _core
from rbegir.encode.binarizer.learn import Terms, learn, search, second_moment, terms
from tests.isa import every_isa


def errors(a: np.ndarray, x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """‖x − A·b/‖b‖‖² of vectors [count, dims] and codes [count, n]."""
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    return ((x - unit @ a.T) ** 2).sum(axis=1)


def plain(g: np.ndarray) -> Terms:
    """No weight on the error along the vector."""
    return Terms(g, np.zeros_like(g))


def problem(dims: int, n: int, planes: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(dims * n + planes)
    a = rng.standard_normal((dims, n)).astype(np.float32)
    x = rng.standard_normal((count, dims)).astype(np.float32) * np.float32(0.7)
    limit = 2**planes - 1
    start = (rng.integers(0, limit + 1, (count, n)) * 2 - limit).astype(np.float32)
    return a, x, start


@pytest.mark.parametrize(
    ("dims", "n", "planes"), [(3, 7, 1), (20, 33, 1), (20, 64, 2), (40, 64, 3), (30, 65, 4)]
)
def test_codes_are_valid_and_end_in_a_local_optimum(dims: int, n: int, planes: int) -> None:
    a, x, start = problem(dims, n, planes, 37)
    before = errors(a, x, start)
    gram = np.ascontiguousarray(a.T @ a)
    codes = search(plain(x @ a), gram, planes, 0, start.copy())
    limit = 2**planes - 1
    assert np.isin(codes, np.arange(-limit, limit + 1, 2)).all()
    after = errors(a, x, codes)
    assert (after <= before + 1e-4).all()
    worse = 0
    for j, step in itertools.product(range(n), (-2, 2)):
        moved = codes.copy()
        moved[:, j] += step
        valid = np.abs(moved[:, j]) <= limit
        worse += int((errors(a, x, moved)[valid] < after[valid] * 0.97 - 1e-3).sum())
    assert worse <= (0 if planes == 1 else 5)  # of thousands: several planes judge moves approximately


@pytest.mark.parametrize("planes", [1, 2])
def test_small_problems_are_solved(planes: int) -> None:
    n = 10 if planes == 1 else 5
    a, x, start = problem(4, n, planes, 30)
    limit = 2**planes - 1
    every = np.array(list(itertools.product(range(-limit, limit + 1, 2), repeat=n)), np.float32)
    best = np.array([errors(a, row[None], every).min() for row in x])
    found = errors(a, x, search(plain(x @ a), np.ascontiguousarray(a.T @ a), planes, 400, start))
    assert (found >= best - 1e-4).all()
    assert np.isclose(found, best, rtol=1e-3, atol=1e-4).mean() > (0.9 if planes == 1 else 0.6)


@pytest.mark.parametrize("planes", [1, 2])
def test_the_form_of_a_vector_of_its_own_is_solved(planes: int) -> None:
    """G + vvᵀ against every code, by the plain formula."""
    n = 10 if planes == 1 else 5
    a, x, start = problem(4, n, planes, 30)
    v = np.random.default_rng(1).standard_normal((30, n)).astype(np.float32)
    target = np.random.default_rng(2).standard_normal(30).astype(np.float32)
    limit = 2**planes - 1
    every = np.array(list(itertools.product(range(-limit, limit + 1, 2), repeat=n)), np.float32)

    def loss(codes: np.ndarray, row: int) -> np.ndarray:
        unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        return errors(a, x[row][None], codes) + (target[row] - unit @ v[row]) ** 2

    form = Terms(x @ a + target[:, None] * v, v)
    codes = search(form, np.ascontiguousarray(a.T @ a), planes, 400, start)
    best = np.array([loss(every, row).min() for row in range(30)])
    found = np.array([loss(codes[row][None], row)[0] for row in range(30)])
    assert (found >= best - 1e-4).all()
    assert np.isclose(found, best, rtol=1e-3, atol=1e-4).mean() > (0.9 if planes == 1 else 0.6)


@pytest.mark.parametrize("same", [True, False])
def test_terms_are_the_error_in_two_parts(*, same: bool) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((40, 12)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    mean = vectors.mean(axis=0)
    asked = vectors if same else vectors[:, ::-1].copy()
    moment = second_moment(asked)
    learned = learn(vectors, asked, mean, moment, 64, 2, 3, 0, relative=not same)
    codes = (rng.integers(0, 4, (40, 64)) * 2 - 3).astype(np.float32)
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    rest = vectors - mean - unit @ learned.query.T  # x − x̂
    weight, short, share = learned.along
    assert (short == 0) != (share == 0)
    meant = (asked * (vectors - mean)).sum(axis=1)
    expected = ((rest @ learned.metric) ** 2).sum(axis=1) + weight * (
        (asked * rest).sum(axis=1) - short - share * meant
    ) ** 2
    form = terms(vectors, asked, learned)
    inner = (form.v * unit).sum(axis=1)
    value = ((unit @ learned.gram - 2 * form.g) * unit).sum(axis=1) + inner**2
    value += (((vectors - mean) @ learned.metric) ** 2).sum(axis=1)  # what no code changes
    value += weight * (meant - meant * share - short) ** 2
    assert weight > 0
    assert np.allclose(value, expected, rtol=1e-3, atol=1e-4)


def test_more_moves_are_never_worse_and_threads_change_nothing() -> None:
    a, x, start = problem(24, 64, 2, 100)
    gram = np.ascontiguousarray(a.T @ a)
    results = [errors(a, x, search(plain(x @ a), gram, 2, moves, start.copy())) for moves in (0, 20, 200)]
    assert (results[1] <= results[0] + 1e-4).all()
    assert (results[2] <= results[1] + 1e-4).all()
    assert results[2].mean() < results[0].mean()
    alone, many = start.copy(), start.copy()
    for codes, threads in ((alone, 1), (many, 5)):
        _core.refine(x @ a, np.zeros_like(x @ a), gram, codes, codes @ gram, 2, 50, 3, threads, 1, "portable")
    assert np.array_equal(alone, many)


def test_wrong_shapes_are_refused() -> None:
    a, x, start = problem(4, 64, 1, 3)
    gram = np.ascontiguousarray(a.T @ a)
    with pytest.raises(ValueError, match="must be"):
        _core.refine((x @ a)[:2], x @ a, gram, start, start @ gram, 1, 0, 3, 1, 1, "portable")
    with pytest.raises(ValueError, match="planes must be 1 to 4"):
        _core.refine(x @ a, x @ a, gram, start, start @ gram, 5, 0, 3, 1, 1, "portable")


@pytest.mark.parametrize(
    "codes", [np.ones((3, 64)), np.ones((3, 128), np.float32)[:, ::2]], ids=["dtype", "stride"]
)
def test_codes_that_cannot_be_improved_in_place_are_refused(codes: np.ndarray) -> None:
    """A copy would be improved, and thrown away."""
    g = np.ones((3, 64), np.float32)
    gram = np.eye(64, dtype=np.float32)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _core.refine(g, g, gram, codes, g, 1, 0, 3, 1, 1, "portable")


@every_isa()
@pytest.mark.parametrize(("n", "planes"), [(7, 1), (33, 2), (64, 1), (64, 4), (128, 2)])
def test_a_code_depends_on_its_own_vector_alone(isa: str, n: int, planes: int) -> None:
    """Not on the vectors beside it, the number of threads or the instruction set."""
    a, x, start = problem(20, n, planes, 19)  # two by two, and one is left
    gram = np.ascontiguousarray(a.T @ a)
    g, h = x @ a, start @ gram
    v = np.float32(0.1) * np.random.default_rng(1).standard_normal(g.shape, np.float32)
    together = start.copy()
    _core.refine(g, v, gram, together, h, planes, 60, 3, 2, 1, isa)
    for i in range(len(x)):
        row = slice(i, i + 1)
        alone = start[row].copy()
        _core.refine(g[row], v[row], gram, alone, h[row], planes, 60, 3, 1, 1, "portable")
        assert np.array_equal(alone[0], together[i])
