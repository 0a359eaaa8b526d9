"""Columns of a segment: Arrow's memory layout on disk, one run of values for the whole segment.

    fixed width   `data`: the values, or one bit per value for bool
    string        `offsets`: int32 or int64 [count + 1] · `data`: text i is data[offsets[i]:offsets[i+1]]
    with nulls    `validity`: one bit per value, set where it is not null; data under a null are zero or empty

A mapped column is a zero-copy `pyarrow.Array` of any length. Arrow's IPC format was rejected: its metadata
would be parsed before they are trusted, and a hundred million rows would be thousands of batches to open one
by one.

Both ways to read verify the checksums of what they read first: `take(positions)` touches a few blocks for
hits, `whole()` validates the whole array once for filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import type_named
from rbegir.errors import CorruptError
from rbegir.index.format import File, FileWriter, Section

INT32_LIMIT = 2**31 - 1

Chunks = Callable[[], Iterator[pa.Array]]  # each call yields the column's chunks from the start
Int64s = npt.NDArray[np.int64]


class ColumnSpec(NamedTuple):
    """What the directory of a segment says about a column."""

    name: str
    type: str
    nulls: int
    wide: bool  # strings: int64 offsets


def int64_array(numbers: Int64s) -> pa.Array:
    """A NumPy array as an Arrow array, without a copy.

    `pa.array` and `to_numpy` import pandas if it is installed, which takes longer than a search.
    """
    plain = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(pa.int64(), plain.size, [None, pa.py_buffer(plain)])


def int64_numpy(array: pa.Array) -> Int64s:
    """An Arrow int64 array without nulls as a NumPy array, without a copy."""
    data = array.buffers()[1]
    return np.frombuffer(data or b"", np.int64)[array.offset : array.offset + len(array)]


def write_column(
    writer: FileWriter, prefix: str, name: str, dtype: pa.DataType, chunks: Chunks
) -> ColumnSpec:
    """Write a column of any length with one chunk in memory at a time, plus two bytes per value."""
    valid: list[npt.NDArray[np.bool_]] = []
    bools: list[npt.NDArray[np.bool_]] = []
    wide = False
    if pa.types.is_string(dtype):
        lengths = sum(int(pc.sum(pc.binary_length(chunk)).as_py() or 0) for chunk in chunks())
        wide = lengths > INT32_LIMIT
        offset_type = np.dtype("<i8" if wide else "<i4")
        writer.begin(f"{prefix}.offsets")
        writer.write(np.zeros(1, offset_type))
        total = 0
        for chunk in chunks():
            ends = total + np.cumsum(pc.fill_null(pc.binary_length(chunk), 0).to_numpy(), dtype=np.int64)
            writer.write(ends.astype(offset_type))
            total = int(ends[-1]) if len(ends) else total
    writer.begin(f"{prefix}.data")
    for chunk in chunks():
        valid.append(chunk.is_valid().to_numpy(zero_copy_only=False))
        if pa.types.is_boolean(dtype):
            bools.append(chunk.fill_null(False).to_numpy(zero_copy_only=False))
        else:
            writer.write(_value_bytes(chunk))
    if bools:
        writer.write(np.packbits(np.concatenate(bools), bitorder="little"))
    flags = np.concatenate(valid) if valid else np.zeros(0, np.bool_)
    nulls = int(flags.size - np.count_nonzero(flags))
    if nulls:
        writer.section(f"{prefix}.validity", np.packbits(flags, bitorder="little"))
    return ColumnSpec(name, str(dtype), nulls, wide)


class Column:
    """A mapped column."""

    def __init__(self, file: File, prefix: str, spec: ColumnSpec, count: int) -> None:
        dtype = type_named(spec.type)
        if dtype is None or not 0 <= spec.nulls <= count:
            raise CorruptError(f"{file.path} is damaged: column {spec.name!r} has no known type")
        self.name = spec.name
        self.type = dtype
        self._wide = spec.wide
        self._nulls = spec.nulls
        self._count = count
        self._data = file.section(f"{prefix}.data")
        self._validity = file.section(f"{prefix}.validity") if spec.nulls else None
        self._offsets = file.section(f"{prefix}.offsets") if pa.types.is_string(dtype) else None
        self._array: pa.Array | None = None
        self._validated = False

    def take(self, positions: Int64s) -> pa.Array:
        """The values at these positions, in this order."""
        for section, starts, stops in self.spans(positions):
            if section is self._data and (
                np.any(starts < 0) or np.any(stops < starts) or np.any(stops > section.bytes)
            ):
                raise section.corrupt("is pointed past by its offsets")
            section.touch(starts, stops)
        try:
            found = self._mapped().take(int64_array(positions))
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._data.corrupt("does not hold valid values") from error
        return found.cast(self.type) if self._wide else found

    def spans(self, positions: Int64s) -> Iterator[tuple[Section, Int64s, Int64s]]:
        """Yield each section and the byte ranges [start, stop) of it that hold the values.

        Check each before asking for the next: where a text lies is known only from its checked offsets.
        """
        bits = positions >> 3
        if self._validity is not None:
            yield self._validity, bits, bits + 1
        if self._offsets is not None:
            dtype = np.dtype("<i8" if self._wide else "<i4")
            yield self._offsets, positions * dtype.itemsize, (positions + 2) * dtype.itemsize
            offsets = self._offsets.unchecked(dtype, self._count + 1)
            yield self._data, offsets[positions].astype(np.int64), offsets[positions + 1].astype(np.int64)
        elif pa.types.is_boolean(self.type):
            yield self._data, bits, bits + 1
        else:
            width = self.type.bit_width // 8
            yield self._data, positions * width, (positions + 1) * width

    def whole(self) -> pa.Array:
        """All values; every byte is checked and validated at the first call."""
        if not self._validated:
            for section in (self._validity, self._offsets, self._data):
                if section is not None:
                    section.view(np.uint8, section.bytes)
            try:
                self._mapped().validate(full=True)
            except pa.ArrowInvalid as error:
                raise self._data.corrupt("does not hold valid values") from error
            self._validated = True
        return self._mapped()

    def _mapped(self) -> pa.Array:
        if self._array is None:
            dtype = pa.large_string() if self._wide else self.type
            validity = _buffer(self._validity) if self._validity is not None else None
            strings = [] if self._offsets is None else [_buffer(self._offsets)]
            buffers = [validity, *strings, _buffer(self._data)]
            try:
                self._array = pa.Array.from_buffers(dtype, self._count, buffers, null_count=self._nulls)
            except pa.ArrowInvalid as error:
                raise self._data.corrupt("is too short for its column") from error
        return self._array


def _value_bytes(chunk: pa.Array) -> npt.NDArray[Any]:
    """The value bytes of a chunk; zero or empty under nulls."""
    if pa.types.is_string(chunk.type):
        chunk = chunk.fill_null("")
        if not len(chunk):
            return np.zeros(0, np.uint8)
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        data = chunk.buffers()[2]
        return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data else np.zeros(0, np.uint8)
    bare = chunk.view(f"int{chunk.type.bit_width}")  # the same bytes as plain integers
    return np.ascontiguousarray(bare.fill_null(0).to_numpy())


def _buffer(section: Section) -> pa.Buffer:
    return pa.py_buffer(section.unchecked(np.uint8, section.bytes))
