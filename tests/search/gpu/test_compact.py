"""Candidates gathered before the scan: the same hits, at the same positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rbegir.base import masks
from rbegir.search.gpu import compact, proof
from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.device import Range, Residency
from rbegir.search.gpu.words import INTERPRETED, SlabSearch
from tests.search.gpu.cases import assert_equal_to_reference, make_case

DEVICE = "cpu" if INTERPRETED else "cuda:0"


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "worth", lambda pieces, scan_ms: True)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("density", [0.03, 0.6])
def test_gathered_searches_equal_the_reference(density: float) -> None:
    rng = np.random.default_rng(1)
    case = make_case(rng, 64, 2, counts=(500, 33, 64), density=density, k=30, copies=20)
    whole = make_case(rng, 64, 2, counts=(70,))  # a partition without a mask between two with one
    case.parts.insert(1, whole.parts[0])
    assert_equal_to_reference(GpuBackend(64, 2, [DEVICE, DEVICE]), case)


@pytest.mark.usefixtures("_always")
def test_repaired_queries_are_mapped_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """More ties than there is room for, among gathered candidates."""
    monkeypatch.setattr(proof, "power_of_two", lambda x: 64)
    case = make_case(np.random.default_rng(2), 64, 2, counts=(190, 70), density=0.7, copies=2, k=30)
    assert_equal_to_reference(GpuBackend(64, 2, DEVICE), case)


@pytest.mark.parametrize(("n", "planes", "count"), [(64, 2, 1), (64, 2, 1055), (192, 3, 70)])
def test_what_is_gathered(n: int, planes: int, count: int) -> None:
    case = make_case(np.random.default_rng(count), n, planes, counts=(count,), density=0.3)
    part = case.parts[0]
    wanted = np.flatnonzero(masks.to_bools(part.mask, count))
    device = torch.device(DEVICE)
    slab = Residency(n, planes, device).upload(Range(part.packed, count, 0, count))
    mask = torch.from_numpy(part.mask.view(np.int32).copy()).to(device)
    gathered, rows = compact.gather([SlabSearch(slab, 1000, mask, len(wanted))])
    np.testing.assert_array_equal(rows.cpu().numpy(), 1000 + wanted)
    assert gathered.candidates == gathered.slab.count == len(wanted)
    np.testing.assert_array_equal(
        gathered.slab.words[:, : len(wanted)].cpu().numpy(), slab.words.cpu().numpy()[:, wanted]
    )


def test_when_it_pays() -> None:
    """Few candidates of many keywords; not a filter that keeps most, not a small index, not without masks."""
    case = make_case(np.random.default_rng(3), 64, 2, counts=(64,))
    slab = Residency(64, 2, torch.device(DEVICE)).upload(Range(case.parts[0].packed, 64, 0, 64))
    mask = torch.zeros(2, dtype=torch.int32)

    def piece(count: int, candidates: int, masked: bool = True) -> list[SlabSearch]:
        from dataclasses import replace

        return [SlabSearch(replace(slab, count=count), 0, mask if masked else None, candidates)]

    assert compact.worth(piece(10**9, 10**7), 15.0)
    assert not compact.worth(piece(10**9, 9 * 10**8), 15.0)
    assert not compact.worth(piece(10**6, 10**4), 15.0)
    assert not compact.worth(piece(10**9, 10**9, masked=False), 15.0)
