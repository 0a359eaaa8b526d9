"""What a search backend is: packed keywords and integer queries in, the best k in total order out.

The total order of hits is (order key descending, position ascending), with the exact integer keys of
`rbegir.codes.score`. Positions count keywords over the partitions in their order, masked ones included, so
that position order is row order. All backends return equal results, ties included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rbegir.codes.layout import groups, packed_bytes
from rbegir.codes.score import QUERY_LIMIT
from rbegir.errors import InputError


class Partition(NamedTuple):
    """Packed keywords (`codes.layout`) and which of them are candidates."""

    packed: npt.NDArray[np.uint8]  # [packed_bytes]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    mask: npt.NDArray[np.uint64] | None = None  # [groups] bit i % 64 of word i // 64; None: all


class Candidates(NamedTuple):
    """The best of each query; the number of columns is min(k, keywords that pass the masks)."""

    keys: npt.NDArray[np.int64]  # [queries, k]
    positions: npt.NDArray[np.int64]  # [queries, k]


class Backend(Protocol):
    """Anything that searches; see `reference` for the plainest one."""

    def search(
        self, partitions: Sequence[Partition], values: npt.NDArray[np.int16], k: int
    ) -> Candidates: ...


def make_mask(passes: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Bools [count] as the words of a mask [groups]."""
    if not isinstance(passes, np.ndarray) or passes.dtype != np.bool_ or passes.ndim != 1:
        raise InputError("passes must be a one-dimensional bool array")
    packed = np.zeros(groups(len(passes)) * 8, dtype=np.uint8)
    packed[: -(-len(passes) // 8)] = np.packbits(passes, bitorder="little")
    return packed.view("<u8").astype(np.uint64, copy=False)


def read_mask(mask: npt.NDArray[np.uint64] | None, count: int) -> npt.NDArray[np.bool_]:
    """The inverse of `make_mask`; None is all True."""
    if mask is None:
        return np.ones(count, dtype=np.bool_)
    raw = mask.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(raw, bitorder="little")[:count].astype(np.bool_)


def describe(value: object) -> str:
    """What came, for a message."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def check_k(k: int) -> int:
    """k as an int; it must be positive."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise InputError(f"k must be an integer, got {type(k).__name__}")
    if k <= 0:
        raise InputError(f"k must be at least 1, got {k}")
    return int(k)


def check_values(values: npt.NDArray[np.int16], n: int) -> npt.NDArray[np.int16]:
    """Integer queries int16 [queries, n] within ±255, as a contiguous array."""
    if not isinstance(values, np.ndarray) or values.dtype != np.int16:
        came = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise InputError(f"values must be an int16 array [queries, {n}], got {came}")
    if values.ndim != 2 or values.shape[1] != n:
        raise InputError(f"values must have shape [queries, {n}], got {list(values.shape)}")
    if values.size and max(int(values.max()), -int(values.min())) > QUERY_LIMIT:
        raise InputError(f"values of a query must be within ±{QUERY_LIMIT}")
    return np.ascontiguousarray(values)


def check_positions(positions: npt.NDArray[np.int64], queries: int, keywords: int) -> npt.NDArray[np.int64]:
    """Positions of keywords int64 [queries, m], as a contiguous array."""
    if not isinstance(positions, np.ndarray) or positions.dtype != np.int64:
        raise InputError(f"positions must be an int64 array [{queries}, m], got {describe(positions)}")
    if positions.ndim != 2 or len(positions) != queries:
        raise InputError(f"positions must have shape [{queries}, m], got {list(positions.shape)}")
    if positions.size and (positions.min() < 0 or positions.max() >= keywords):
        raise InputError(
            f"positions must be from 0 to {keywords - 1}, got {positions.min()} to {positions.max()}"
        )
    return np.ascontiguousarray(positions)


def check_search(
    partitions: Sequence[Partition], values: npt.NDArray[np.int16], k: int, n: int, planes: int
) -> tuple[list[Partition], npt.NDArray[np.int16], int]:
    """What a search is asked of a backend of this shape: all of the checks here."""
    k, values = check_k(k), check_values(values, n)
    return check_partitions(partitions, n, planes), values, k


def check_partitions(partitions: Sequence[Partition], n: int, planes: int) -> list[Partition]:
    """Partitions whose buffers have the right type and size."""
    checked = []
    for index, (packed, count, mask) in enumerate(partitions):
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise InputError(f"count of partition {index} must be a non-negative integer, got {count!r}")
        count = int(count)
        size, words = packed_bytes(count, n, planes), groups(count)
        if not isinstance(packed, np.ndarray) or packed.dtype != np.uint8 or packed.shape != (size,):
            raise InputError(
                f"packed of partition {index} must be uint8 [{size}] for {count} keywords of {planes} × {n} "
                f"bits, got {describe(packed)}"
            )
        packed = np.ascontiguousarray(packed)
        if mask is not None:
            if not isinstance(mask, np.ndarray) or mask.dtype != np.uint64 or mask.shape != (words,):
                raise InputError(
                    f"mask of partition {index} must be uint64 [{words}], one bit for each of {count} "
                    f"keywords, got {describe(mask)}"
                )
            mask = np.ascontiguousarray(mask)
        checked.append(Partition(packed, count, mask))
    return checked
