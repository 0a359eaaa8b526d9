"""What a search backend is: partitions of packed keywords and integer queries in, the best k in total order out.

The total order of hits is (order key descending, position ascending), with the exact integer keys of
`rbegir.codes.score`. Positions count keywords over the partitions in their order, masked ones included, so that
position order is row order. All backends return equal results, ties included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rbegir.codes.layout import GROUP, groups, packed_bytes
from rbegir.codes.score import QUERY_LIMIT
from rbegir.errors import InputError


class Partition(NamedTuple):
    """Packed keywords (`codes.layout`) and which of them are candidates."""

    packed: npt.NDArray[np.uint8]  # [packed_bytes]
    count: int
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


def check_partitions(partitions: Sequence[Partition], n: int, planes: int) -> list[Partition]:
    """Partitions whose buffers have the right type and size."""
    checked = []
    for index, part in enumerate(partitions):
        packed, count, mask = part
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise InputError(f"count of partition {index} must be a non-negative integer, got {count!r}")
        size = packed_bytes(int(count), n, planes)
        if not isinstance(packed, np.ndarray) or packed.dtype != np.uint8 or packed.shape != (size,):
            came = (
                f"{packed.dtype} {list(packed.shape)}"
                if isinstance(packed, np.ndarray)
                else type(packed).__name__
            )
            raise InputError(
                f"packed of partition {index} must be uint8 [{size}] for {count} keywords of {planes} × {n} bits, "
                f"got {came}"
            )
        if mask is not None and (
            not isinstance(mask, np.ndarray) or mask.dtype != np.uint64 or mask.shape != (groups(int(count)),)
        ):
            came = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise InputError(
                f"mask of partition {index} must be uint64 [{groups(int(count))}], one bit for each of {count} "
                f"keywords, got {came}"
            )
        checked.append(
            Partition(
                np.ascontiguousarray(packed), int(count), None if mask is None else np.ascontiguousarray(mask)
            )
        )
    return checked


__all__ = ["GROUP", "Backend", "Candidates", "Partition", "make_mask", "read_mask"]
