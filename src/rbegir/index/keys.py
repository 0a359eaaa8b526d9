"""Finding the position of an id, or those of a tenant, in a segment without reading the segment.

    keys    uint64 [count], ascending    an integer as it is (int64, two's complement), a string hashed
    order   uint32 [count]               the position of each key
    fences  uint64 [⌈count / 512⌉]       every 512th key: the first of each 4 KiB of keys

A lookup searches the fences, then the one block of keys they point at. A lookup among 10⁷ ids thus reads one
small section once and then 4 KiB per id, each checked before it is used. All wanted ids are searched together
in NumPy; if most blocks would be read anyway, all blocks are read. The caller resolves equal keys (hash
collisions) by comparing ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir._native._core import hash_strings
from rbegir.index.columns import Int64s, int64_numpy
from rbegir.index.format import File, FileWriter, Section

STRIDE = 512

Keys = npt.NDArray[np.generic]  # of 64 bits


def keys_of(ids: pa.Array) -> npt.NDArray[np.uint64]:
    """The keys [count] of integers or strings, without nulls."""
    if pa.types.is_integer(ids.type):
        whole = ids if pa.types.is_int64(ids.type) else ids.cast(pa.int64())
        return int64_numpy(whole).view(np.uint64)
    texts = ids.cast(pa.large_string())
    if not len(texts):
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    return np.asarray(hash_strings(np.ascontiguousarray(offsets), data))


def write_keys(writer: FileWriter, name: str, keys: npt.NDArray[np.uint64]) -> None:
    """Write the three sections for the keys of positions 0, 1, 2 …; equal keys keep that order."""
    for part, data in sorted_parts(keys).items():
        writer.section(f"{name}.{part}", data)


def sorted_parts(keys: npt.NDArray[np.uint64]) -> dict[str, npt.NDArray[Any]]:
    """The contents of the three sections."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return {
        "keys": ordered.astype("<u8", copy=False),
        "order": order.astype("<u4"),
        "fences": ordered[::STRIDE].astype("<u8"),
    }


class SortedKeys:
    """The sections written by `write_keys`, or any ascending section of 64-bit keys with its fences."""

    def __init__(self, keys: Section, fences: Section, count: int, dtype: str = "<u8") -> None:
        self._section = keys
        self._keys = keys.unchecked(dtype, count)
        self._fences = fences
        self._dtype = dtype
        self._count = count

    @classmethod
    def named(cls, file: File, name: str, count: int) -> SortedKeys:
        return cls(file.section(f"{name}.keys"), file.section(f"{name}.fences"), count)

    def find(self, wanted: Keys) -> tuple[Int64s, Int64s]:
        """The run of each wanted key: keys[first:last] are equal to it; empty if there is none."""
        if wanted.size > self._count // STRIDE:  # most blocks would be read anyway
            keys = self._section.view(self._dtype, self._count)
            order = np.argsort(wanted)  # neighbouring searches share cache lines
            first, last = np.zeros(wanted.size, np.int64), np.zeros(wanted.size, np.int64)
            first[order] = np.searchsorted(keys, wanted[order], "left")
            last[order] = np.searchsorted(keys, wanted[order], "right")
            return first, last
        fences = self._fences.view(self._dtype, -(-self._count // STRIDE))
        # the run of a key starts after the last fence below it, and ends before the first fence above it
        low = np.maximum(np.searchsorted(fences, wanted, "left") - 1, 0) * STRIDE
        high = np.minimum(np.searchsorted(fences, wanted, "right") * STRIDE, self._count)
        self._section.touch(8 * low, 8 * np.maximum(high, low))
        if wanted.size == 1:
            block = self._keys[low[0] : high[0]]
            return low + np.searchsorted(block, wanted, "left"), low + np.searchsorted(block, wanted, "right")
        return self._bisect(wanted, low, high, right=False), self._bisect(wanted, low, high, right=True)

    def _bisect(self, wanted: Keys, low: Int64s, high: Int64s, *, right: bool) -> Int64s:
        """Binary searches for all keys in lockstep, each within its own bounds; as np.searchsorted."""
        low, high = low.copy(), high.copy()
        while np.any(low < high):
            middle = (low + high) >> 1
            probe = self._keys[np.minimum(middle, max(self._count - 1, 0))]
            smaller = (probe <= wanted) if right else (probe < wanted)
            ahead = smaller & (low < high)
            behind = ~smaller & (low < high)
            low = np.where(ahead, middle + 1, low)
            high = np.where(behind, middle, high)
        return low
