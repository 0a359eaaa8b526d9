"""Hundreds of random shapes on a real card, every kernel against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rbegir.search.gpu import card, maxsim, tensorcore
from rbegir.search.gpu.backend import GpuBackend
from tests.search.gpu.cases import assert_equal_to_reference, assert_items_equal, items_of, make_case

pytestmark = pytest.mark.gpu

SHAPES = [  # n, planes, largest query value, odd
    (64, 2, 7, True),
    (64, 2, 255, True),
    (64, 2, 127, False),
    (64, 1, 1, True),
    (64, 3, 3, True),
    (128, 2, 7, True),
    (192, 3, 31, False),
    (256, 4, 255, False),
    (512, 1, 7, False),
    (1024, 4, 255, False),
]


@pytest.mark.parametrize("method", ["popcount", "product", "mma", "wgmma", "float8", None])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_reference(
    method: str | None, shape: tuple[int, int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    n, planes, top, odd = shape
    kinds = tensorcore.kinds_of(torch.device("cuda:0"))
    if method in ("mma", "wgmma", "float8") and (
        method not in kinds or not tensorcore.fits(method, n, planes, top)
    ):
        method = None  # the kernel is not for this shape or card: let the dispatcher choose another
    rng = np.random.default_rng(n * planes + top)
    for turn in range(8):
        monkeypatch.setattr(card, "DENSE", int(rng.choice([300, 1 << 16])))
        case = make_case(
            rng,
            n,
            planes,
            top=top,
            odd=odd,
            queries=int(rng.choice([1, 2, 9])) if method == "popcount" else int(rng.choice([1, 7, 65, 300])),
            k=int(rng.choice([1, 10, 100, 1000, 20_000])),
            counts=tuple(rng.choice([1, 63, 64, 65, 1000, 1024, 4097, 12_000], rng.integers(1, 4)).tolist()),
            density=[None, 0.5, 0.02, None][turn % 4],
            copies=5 if turn % 3 == 2 else None,
        )
        backend = GpuBackend(n, planes, ["cuda:0"] * (1 + turn % 2))
        for worker in backend._workers:
            worker.card.force = method
        assert_equal_to_reference(backend, case)


def test_a_hundred_thousand_hits() -> None:
    case = make_case(np.random.default_rng(1), 64, 2, counts=(300_000,), k=100_000)
    assert_equal_to_reference(GpuBackend(64, 2), case)


def test_more_queries_than_one_pass() -> None:
    case = make_case(np.random.default_rng(2), 64, 2, counts=(5000,), queries=2500, k=20)
    assert_equal_to_reference(GpuBackend(64, 2), case)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maxsim_equals_the_reference(
    shape: tuple[int, int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    n, planes, top, odd = shape
    rng = np.random.default_rng(n * planes + top)
    for turn in range(8):
        monkeypatch.setattr(maxsim, "SPANS", int(rng.choice([1, 300, 1 << 12])))
        monkeypatch.setattr(maxsim, "LONG", int(rng.choice([64, 1000, 1 << 14])))
        case = make_case(
            rng,
            n,
            planes,
            top=top,
            odd=odd,
            queries=int(rng.choice([1, 8, 16, 17, 32, 33, 70])),
            k=int(rng.choice([1, 10, 1000, 100_000])),
            counts=tuple(rng.choice([1, 63, 65, 1000, 1024, 4097, 12_000], rng.integers(1, 4)).tolist()),
            density=[None, 0.5, 0.02, None][turn % 4],
            copies=5 if turn % 3 == 2 else None,
        )
        total = sum(part.count for part in case.parts)
        longest = int(rng.choice([1, 5, 60, 300, 5000]))
        order = items_of(rng, total, longest, scattered=[0, 0.3, 0][turn % 3])
        assert_items_equal(GpuBackend(n, planes, ["cuda:0"] * (1 + turn % 2)), case, order)


def test_maxsim_of_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """More items than programs, so that each takes several turns."""
    monkeypatch.setattr(maxsim, "PROGRAMS", 100)
    rng = np.random.default_rng(3)
    case = make_case(rng, 64, 2, counts=(300_000,), queries=5, k=100, density=0.9)
    assert_items_equal(GpuBackend(64, 2), case, items_of(rng, 300_000, 3))
