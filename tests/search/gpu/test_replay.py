"""Captured searches: the same results as fresh ones, whatever came before. Only a real card captures."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from rbegir.search.gpu.backend import GpuBackend
from rbegir.search.gpu.replay import KEPT, Replays
from tests.search.gpu.cases import assert_equal_to_reference, make_case

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"


def test_a_search_again_and_again_with_other_queries() -> None:
    """Eager, captured, replayed; then a batch, other keywords, and the first ones again."""
    rng = np.random.default_rng(1)
    backend = GpuBackend(64, 2, DEVICE)
    first = make_case(rng, 64, 2, counts=(500, 90), k=20)
    second = make_case(rng, 64, 2, counts=(130,), k=20, queries=3)
    for case in (first, first, first, second, second, second, first, second):
        values = make_case(rng, 64, 2, counts=(), queries=len(case.values)).values
        assert_equal_to_reference(backend, case._replace(values=values))


def test_small_searches_are_captured_and_masked_ones_are_not() -> None:
    rng = np.random.default_rng(2)
    backend = GpuBackend(64, 2, DEVICE)
    seen = backend._workers[0].replays._seen
    case = make_case(rng, 64, 2, counts=(5000,), k=20)
    for _ in range(2):
        assert_equal_to_reference(backend, case)
    (captured,) = seen.values()
    assert captured is not None
    assert_equal_to_reference(backend, make_case(rng, 64, 2, counts=(5000,), k=20, density=0.5))
    assert len(seen) == 1


def test_graphs_do_not_keep_keywords_alive() -> None:
    rng = np.random.default_rng(3)
    backend = GpuBackend(64, 2, DEVICE)
    case = make_case(rng, 64, 2, counts=(5000,), k=20)
    for _ in range(3):
        assert_equal_to_reference(backend, case)
    replays = backend._workers[0].replays
    (captured,) = replays._seen.values()
    backend._workers[0].resident.clear()
    gc.collect()
    assert captured.slabs[0]() is None
    for _ in range(3):
        assert_equal_to_reference(backend, case)


def test_a_driver_that_cannot_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(Replays, "_capture", refuse)
    backend = GpuBackend(64, 2, DEVICE)
    case = make_case(np.random.default_rng(4), 64, 2, counts=(5000,), k=20)
    for _ in range(3):
        assert_equal_to_reference(backend, case)
    assert not backend._workers[0].replays._seen


def test_the_number_of_graphs_is_bounded() -> None:
    backend = GpuBackend(64, 2, DEVICE)
    case = make_case(np.random.default_rng(5), 64, 2, counts=(5000,))
    for k in range(1, KEPT + 5):
        for _ in range(2):
            assert_equal_to_reference(backend, case._replace(k=k))
    assert len(backend._workers[0].replays._seen) == KEPT
    torch.cuda.synchronize()
