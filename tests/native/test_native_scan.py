"""The native scan guards its buffers even when Python's checks are not in between."""

import numpy as np
import pytest

from rbegir._native import _core


def call(**change):
    settings = {
        "packed": np.zeros(1024, np.uint8),
        "count": 64,
        "mask": None,
        "filters": (),
        "limits": None,
        "k": 1,
        "planes": 2,
        "threads": 1,
    }
    settings |= {"isa": "portable", "values": np.zeros((1, 64), np.int16), "positions": None, **change}
    part = (settings["packed"], settings["count"], settings["mask"], settings["filters"])
    shared = {name: settings[name] for name in ("planes", "threads", "isa")}
    if settings["positions"] is None:
        return _core.scan_search([part], settings["values"], settings["k"], settings["limits"], **shared)
    return _core.scan_rescore([part], settings["values"], settings["positions"], settings["k"], **shared)


def test_good_calls() -> None:
    keys, positions = call(k=100)
    assert keys.shape == positions.shape == (1, 64)
    assert keys.dtype == positions.dtype == np.int64
    assert call(positions=np.array([[5, 3]]))[1].tolist() == [[3]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 65}, "packed is too small for its count"),
        ({"mask": np.zeros(0, np.uint64)}, "mask is too small for its count"),
        ({"filters": (np.zeros(0, np.uint64),)}, "mask is too small for its count"),
        ({"limits": np.zeros((2, 4), np.int64)}, r"limits must be \[queries, 4\]"),
        ({"limits": np.zeros((1, 3), np.int64)}, r"limits must be \[queries, 4\]"),
        ({"filters": (None,), "limits": np.array([[0, 0, 0, 1]])}, "filter out of range"),
        ({"filters": (None,), "limits": np.array([[0, 0, 0, -2]])}, "filter out of range"),
        ({"planes": 0}, "n, planes or threads out of range"),
        ({"planes": 5}, "n, planes or threads out of range"),
        ({"threads": 0}, "n, planes or threads out of range"),
        ({"values": np.zeros((1, 65), np.int16)}, "n, planes or threads out of range"),
        ({"values": np.zeros((1, 0), np.int16)}, "n, planes or threads out of range"),
        ({"isa": "sse9"}, "this CPU runs no kernels for the instruction set 'sse9'"),
        ({"positions": np.array([[64]])}, "position out of range"),
        ({"positions": np.array([[-1]])}, "position out of range"),
        ({"positions": np.array([[1], [2]])}, r"positions must be \[queries, m\]"),
        ({"positions": np.array([[1]]), "k": 2}, r"positions must be \[queries, m\], k <= m"),
    ],
)
def test_refuses_values(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.zeros((1, 64), np.int32)},
        {"values": np.zeros((64, 2), np.int16).T},
        {"packed": np.zeros(2048, np.uint8)[::2]},
        {"mask": np.zeros(1, np.int64)},
        {"filters": (np.zeros(1, np.int64),)},
        {"limits": np.zeros((1, 4), np.int32)},
        {"count": -1},
        {"k": -1},
    ],
)
def test_refuses_types(change: dict) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        call(**change)


@pytest.mark.parametrize("part", [(), (np.zeros(1024, np.uint8), 64, None)])
def test_refuses_partitions_of_the_wrong_length(part: tuple) -> None:
    values, shared = np.zeros((1, 64), np.int16), {"planes": 2, "threads": 1, "isa": "portable"}
    with pytest.raises(ValueError, match="a partition must have four entries"):
        _core.scan_search([part], values, 1, None, **shared)
    scores, firsts = np.zeros(0), np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="a part must have four entries"):
        _core.maxsim([part], values, firsts, np.zeros(1, np.int64), scores, firsts, **shared)


def test_read_sum_refuses() -> None:
    with pytest.raises(ValueError, match="threads and streams must be positive"):
        _core.read_sum(np.zeros(256, np.uint8), 0)
