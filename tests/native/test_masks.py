"""Positions divided among masks, against plain Python; nothing is written outside a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rbegir._native import _core
from rbegir.base import masks


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("parts", [1, 3, 70])
def test_each_position_is_added_to_its_mask(count: int, parts: int) -> None:
    numbers = np.random.default_rng(count + parts).integers(-1, parts, count).astype(np.int32)
    found = [masks.empty(count) for _ in range(parts)]
    half = count // 2
    _core.divide(numbers[:half], 0, found)
    _core.divide(numbers[half:], half, found)
    for number, mask in enumerate(found):
        assert masks.to_positions(mask, count).tolist() == np.flatnonzero(numbers == number).tolist()


@pytest.mark.parametrize(
    ("numbers", "start", "given", "error"),
    [
        ([0] * 65, 0, [np.zeros(1, np.uint64)], ValueError),
        ([0], 64, [np.zeros(1, np.uint64)], ValueError),
        ([0], 2**63, [np.zeros(1, np.uint64)], ValueError),
        ([0, 0], 0, [np.zeros(1, np.uint64), np.zeros(0, np.uint64)], ValueError),
        ([1], 0, [np.zeros(1, np.uint64)], ValueError),
        ([-2], 0, [np.zeros(1, np.uint64)], ValueError),
        ([0], -1, [np.zeros(1, np.uint64)], TypeError),
        ([0], 0, [np.zeros(1, np.int64)], RuntimeError),  # a copy would be filled, and thrown away
        ([0], 0, [np.zeros(4, np.uint64)[::2]], RuntimeError),
        ([0], 0, [masks.freeze(np.zeros(1, np.uint64))], RuntimeError),
    ],
)
def test_refused(numbers: list[int], start: int, given: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        _core.divide(np.array(numbers, np.int32), start, given)
    assert not any(mask.any() for mask in given)
