"""Algorithm 1 on devices: queues of any length and any geometry, equal to the reference to the last tie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rbegir.search.backend import Backend
from rbegir.search.gpu import backend as gpu
from rbegir.search.gpu import card, local
from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.device import Range, Residency
from rbegir.search.gpu.words import INTERPRETED, SlabSearch
from rbegir.search.paper import SelectionGeometry
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


@pytest.fixture
def _no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result must come from queues, not from an exact search."""
    monkeypatch.delattr(Backend, "_select")


@pytest.mark.usefixtures("_no_other_way")
@pytest.mark.parametrize(
    ("shape", "search", "geometry"),  # keywords a thread, places a queue, threads a block
    [
        ((64, 2), {"counts": (300, 0, 65, 100), "k": 40}, (2, 1, 64)),
        ((64, 2), {"counts": (290,), "k": 30, "density": 0.6}, (3, 2, 64)),
        ((64, 2), {"counts": (70, 130), "k": 90, "density": 0.1, "queries": 2}, (4, 3, 25)),
        ((64, 2), {"counts": (200,), "k": 25, "copies": 3}, (5, 2, 40)),
        ((64, 2), {"counts": (100,), "k": 12, "copies": 30}, (7, 5, 16)),
        ((128, 1), {"counts": (130, 61), "k": 20, "top": 1}, (1, 1, 256)),
        ((64, 3), {"counts": (90,), "k": 20, "top": 255}, (3, 3, 30)),
        ((64, 4), {"counts": (99,), "k": 500, "top": 2, "odd": False}, (2, 1, 50)),
    ],
)  # fmt: skip
def test_queues_equal_the_reference(
    shape: tuple[int, int], search: dict[str, Any], geometry: tuple[int, int, int]
) -> None:
    case = make_case(np.random.default_rng(sum(search["counts"])), *shape, **search)
    per_thread, queue, block = geometry
    assert_equal(GpuBackend(*shape, DEVICE), case, per_thread=per_thread, queue=queue, block=block)


@pytest.mark.usefixtures("_no_other_way")
def test_threads_that_lie_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three devices share every thread: each sends its best, of which the host drops what is too much."""
    monkeypatch.setattr(gpu, "SPLIT", 64)
    case = make_case(np.random.default_rng(3), 64, 2, counts=(192,), k=30, copies=9)
    assert_equal(GpuBackend(64, 2, [DEVICE] * 3), case, per_thread=8, queue=2, block=24)


def test_larger_batches_come_from_exact_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(local, "begin")
    case = make_case(np.random.default_rng(5), 64, 2, counts=(90,), k=10, queries=gpu.ALONE + 1)
    assert_equal(GpuBackend(64, 2, DEVICE), case, per_thread=3, queue=1, block=4)


def queues_of(case: Case, want: int, geometry: SelectionGeometry) -> local.Queues:
    device = torch.device(DEVICE)
    part = case.parts[0]
    slab = Residency(case.n, case.planes, device).upload(Range(part.packed, part.count, 0, part.count))
    batch = card.Batch(case.values, device)
    return local.begin(
        card.Card(case.n, case.planes, device),
        [SlabSearch(slab, 0, None, part.count)],
        batch,
        want,
        geometry,
    )


@pytest.mark.parametrize("limit", [1 << 40, -(1 << 44)], ids=["too high", "too low"])
def test_a_floor_that_fails_is_repaired(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too high: nothing enters a queue. Too low: more entries than there is room for."""
    case = make_case(np.random.default_rng(6), 64, 2, counts=(250,), k=20)
    real = card.Card.first_limits

    def wrong(self: card.Card, pieces: Any, batch: card.Batch, k: int, boost: float = 1.0) -> Any:
        if boost > 1:
            return real(self, pieces, batch, k, boost)
        return torch.tensor([[limit, 1, 0]], device=batch.device), float(k)

    monkeypatch.setattr(card.Card, "first_limits", wrong)
    with monkeypatch.context() as patch:
        patch.setattr(local, "power_of_two", lambda x: 32 if x < 4096 else 4096)
        keys, positions = queues_of(case, 20, SelectionGeometry(128, 2, 1)).result()[0]
    wanted, _ = ReferenceBackend(64, 2).search_paper(case.parts, case.values, 20, per_thread=2, block=128)
    np.testing.assert_array_equal(keys, wanted.keys[0])
    np.testing.assert_array_equal(positions, wanted.positions[0])
