"""mode="paper" on devices: queues of any length and any geometry, equal to Algorithm 1 to the last tie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rbegir.search import paper
from rbegir.search.gpu import backend as gpu
from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.words import INTERPRETED
from rbegir.search.reference import ReferenceBackend
from tests.search.gpu.cases import Case, make_case

DEVICE = "cpu" if INTERPRETED else "cuda:0"


def assert_equal(backend: GpuBackend, case: Case, **settings: int) -> None:
    found, certificate = backend.search_paper(case.parts, case.values, case.k, **settings)
    wanted, expected = ReferenceBackend(case.n, case.planes).search_paper(
        case.parts, case.values, case.k, **settings
    )
    np.testing.assert_array_equal(found.keys, wanted.keys)
    np.testing.assert_array_equal(found.positions, wanted.positions)
    assert certificate == expected


@pytest.mark.parametrize(
    ("shape", "search", "geometry"),  # keywords a thread, places a queue, threads a block
    [
        ((64, 2), {"counts": (300, 0, 65, 100), "k": 40}, (2, 1, 64)),
        ((64, 2), {"counts": (290,), "k": 30, "density": 0.6}, (3, 2, 64)),
        ((64, 2), {"counts": (70, 130), "k": 90, "density": 0.1, "queries": 3}, (4, 3, 25)),
        ((64, 2), {"counts": (200,), "k": 25, "copies": 3}, (5, 2, 40)),
        ((64, 2), {"counts": (100,), "k": 12, "copies": 30}, (7, 5, 16)),
        ((128, 1), {"counts": (130, 61), "k": 20, "top": 1}, (1, 1, 256)),
        ((64, 3), {"counts": (90,), "k": 20, "top": 255}, (3, 3, 30)),
        ((64, 4), {"counts": (99,), "k": 500, "top": 2, "odd": False}, (2, 1, 50)),
    ],
)  # fmt: skip
def test_equals_algorithm_1(
    shape: tuple[int, int],
    search: dict[str, Any],
    geometry: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case(np.random.default_rng(sum(search["counts"])), *shape, **search)
    per_thread, queue, block = geometry
    monkeypatch.setattr(paper, "BLOCK", block)
    assert_equal(GpuBackend(*shape, DEVICE), case, per_thread=per_thread, queue=queue)


def test_threads_that_lie_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three devices share every thread; only the host sees which hits are the heads of its queue."""
    monkeypatch.setattr(gpu, "SPLIT", 64)
    monkeypatch.setattr(paper, "BLOCK", 24)
    case = make_case(np.random.default_rng(3), 64, 2, counts=(192,), k=30, copies=9)
    assert_equal(GpuBackend(64, 2, [DEVICE] * 3), case, per_thread=8, queue=2)
