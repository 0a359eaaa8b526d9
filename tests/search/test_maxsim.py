"""MaxSim on the CPU equals the reference. tests/index/test_maxsim.py has another reference of its own."""

from __future__ import annotations

import numpy as np
import pytest

from rbegir.search.cpu import EMULATED, CpuBackend
from tests.search.gpu.cases import assert_items_equal, items_of, make_case


@pytest.mark.parametrize(("n", "planes", "top", "vectors"), [(64, 2, 7, 33), (128, 3, 255, 5), (64, 1, 1, 9)])
@pytest.mark.parametrize("k", [1, 10, 10**6])
def test_equals_the_reference(n: int, planes: int, top: int, vectors: int, k: int) -> None:
    rng = np.random.default_rng(n + k)
    case = make_case(
        rng, n, planes, top=top, odd=False, queries=vectors, k=k, counts=(300, 65), density=0.5, copies=20
    )
    order = items_of(rng, 365, 9, scattered=0.2)
    assert_items_equal(CpuBackend(n, planes, threads=2), case, order)


@pytest.mark.parametrize("isa", EMULATED)
def test_backends_whose_scan_is_emulated_rank_items_too(isa: str) -> None:
    rng = np.random.default_rng(5)
    case = make_case(rng, 64, 2, top=7, odd=False, queries=9, k=10, counts=(300, 65), density=0.5, copies=20)
    assert_items_equal(CpuBackend(64, 2, isa=isa), case, items_of(rng, 365, 9, scattered=0.2))
