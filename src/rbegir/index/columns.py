"""Columns of a segment: Arrow's memory layout on disk, one run of values for the whole segment.

    fixed width   `data`: the values, or one bit per value for bool
    string        `offsets`: int32 or int64 [count + 1] · `data`: text i is data[offsets[i]:offsets[i+1]]
    list          `lists`: int64 [count + 1] · the values of all lists, end to end, as one of the above
    with nulls    `validity`: one bit per value, set where it is not null; data under a null are zero or empty

A mapped column is a zero-copy `pyarrow.Array` of any length. Arrow's IPC format was rejected: its metadata
would be parsed before it is trusted, and a hundred million rows would be thousands of batches to open one
by one.

Both ways to read verify checksums first: `take(positions)` checks a few blocks for hits, `whole()` validates
the whole array once for filters.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import can_name, type_named
from rbegir.errors import CorruptError, InputError
from rbegir.index.format import File, FileWriter, Section

INT32_LIMIT = 2**31 - 1

Chunks = Callable[[], Iterator[pa.Array]]  # each call yields the column's chunks from the start
Int64s = npt.NDArray[np.int64]


class ColumnSpec(NamedTuple):
    """The description of a column in the directory of a segment."""

    name: str
    type: str
    nulls: int
    wide: bool  # strings, also in lists: int64 offsets


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
    bools: list[npt.NDArray[np.bool_]] = []
    wide, values = False, chunks
    if pa.types.is_list(dtype):
        _write_offsets(writer, f"{prefix}.lists", np.dtype("<i8"), chunks, pc.list_value_length)

        def values() -> Iterator[pa.Array]:
            return (chunk.flatten() for chunk in chunks())

    if pa.types.is_string(_value_type(dtype)):
        lengths = sum(int(pc.sum(pc.binary_length(chunk)).as_py() or 0) for chunk in values())
        wide = lengths > INT32_LIMIT
        offset_type = np.dtype("<i8" if wide else "<i4")
        _write_offsets(writer, f"{prefix}.offsets", offset_type, values, pc.binary_length)
    writer.begin(f"{prefix}.data")
    for chunk in values():
        if pa.types.is_boolean(dtype):
            bools.append(chunk.fill_null(False).to_numpy(zero_copy_only=False))
        else:
            writer.write(_value_bytes(chunk))
    if bools:
        writer.write(np.packbits(np.concatenate(bools), bitorder="little"))
    valid = [chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in chunks()]
    flags = np.concatenate(valid) if valid else np.zeros(0, np.bool_)
    nulls = int(flags.size - np.count_nonzero(flags))
    if nulls:
        writer.section(f"{prefix}.validity", np.packbits(flags, bitorder="little"))
    return ColumnSpec(name, str(dtype), nulls, wide)


def _write_offsets(
    writer: FileWriter,
    name: str,
    dtype: np.dtype[Any],
    chunks: Chunks,
    length: Callable[[pa.Array], pa.Array],
) -> None:
    """Write where each value begins, and where the last one ends; a null is empty."""
    writer.begin(name)
    writer.write(np.zeros(1, dtype))
    total = 0
    for chunk in chunks():
        ends = total + np.cumsum(pc.fill_null(length(chunk), 0).to_numpy(), dtype=np.int64)
        writer.write(ends.astype(dtype))
        total = int(ends[-1]) if len(ends) else total


def _value_type(dtype: pa.DataType) -> pa.DataType:
    """The type of the stored values: the items of lists, else the values themselves."""
    return dtype.value_type if pa.types.is_list(dtype) else dtype


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
        self._lists = file.section(f"{prefix}.lists") if pa.types.is_list(dtype) else None
        self._offsets = file.section(f"{prefix}.offsets") if pa.types.is_string(_value_type(dtype)) else None
        self._array: pa.Array | None = None
        self._validated = False

    def take(self, positions: Int64s) -> pa.Array:
        """The values at these positions, in this order."""
        for section, starts, stops in self.spans(positions):
            if np.any(starts < 0) or np.any(stops < starts) or np.any(stops > section.bytes):
                raise section.corrupt("is too short for the offsets that point into it")
            section.touch(starts, stops)
        try:
            found = self._mapped().take(int64_array(positions))
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._data.corrupt("does not hold valid values") from error
        return found.cast(self.type) if found.type != self.type else found

    def sizes(self, positions: Int64s) -> Int64s:
        """How many bytes each of these values has, found without reading them."""
        for section, starts, stops in self.spans(positions):
            if section is self._data:  # the last; `take` checks it
                sizes: Int64s = np.maximum(stops - starts, 0)
                return sizes
            if np.any(starts < 0) or np.any(stops < starts) or np.any(stops > section.bytes):
                raise section.corrupt("is too short for the offsets that point into it")
            section.touch(starts, stops)
        raise AssertionError("a column has data")

    def spans(self, positions: Int64s) -> Iterator[tuple[Section, Int64s, Int64s]]:
        """Yield each section and the byte ranges [start, stop) of it that hold the values.

        Check each before asking for the next: only checked offsets say where a text is.
        """
        bits = positions >> 3
        first, last = positions, positions + 1  # of the values
        if self._validity is not None:
            yield self._validity, bits, bits + 1
        if self._lists is not None:
            yield self._lists, positions * 8, (positions + 2) * 8
            lists = self._lists.unchecked("<i8", self._count + 1)
            first, last = lists[positions], lists[positions + 1]
        if self._offsets is not None:
            dtype = np.dtype("<i8" if self._wide else "<i4")
            # a list that ends before it begins is an error too
            ends = np.where(last < first, -1, (last + 1) * dtype.itemsize)
            yield self._offsets, first * dtype.itemsize, ends
            offsets = self._offsets.unchecked(dtype, self._values + 1)
            first, last = (np.clip(one, 0, self._values) for one in (first, last))
            yield self._data, offsets[first].astype(np.int64), offsets[last].astype(np.int64)
        elif pa.types.is_boolean(self.type):
            yield self._data, bits, bits + 1
        else:
            width = _value_type(self.type).bit_width // 8
            yield self._data, first * width, last * width

    def whole(self) -> pa.Array:
        """All values; the first call checks every byte and validates the array."""
        if not self._validated:
            for section in (self._validity, self._lists, self._offsets, self._data):
                if section is not None:
                    section.view(np.uint8, section.bytes)
            try:
                self._mapped().validate(full=True)
            except pa.ArrowInvalid as error:
                raise self._data.corrupt("does not hold valid values") from error
            self._validated = True
        return self._mapped()

    @property
    def _values(self) -> int:
        """The number of stored values; for lists, the number of items."""
        if self._lists is None:
            return self._count
        if self._offsets is not None:
            return self._offsets.bytes // (8 if self._wide else 4) - 1
        return self._data.bytes // int(_value_type(self.type).bit_width // 8)

    def _mapped(self) -> pa.Array:
        if self._array is None:
            dtype = pa.large_string() if self._wide else _value_type(self.type)
            validity = _buffer(self._validity) if self._validity is not None else None
            strings = [] if self._offsets is None else [_buffer(self._offsets)]
            buffers = [validity if self._lists is None else None, *strings, _buffer(self._data)]
            nulls = self._nulls if self._lists is None else 0
            try:
                self._array = pa.Array.from_buffers(dtype, self._values, buffers, null_count=nulls)
                if self._lists is not None:
                    self._array = pa.Array.from_buffers(
                        pa.large_list(dtype),
                        self._count,
                        [validity, _buffer(self._lists)],
                        null_count=self._nulls,
                        children=[self._array],
                    )
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


def check_item(name: str, columns: Mapping[str, str]) -> None:
    """Refuse a column that does not name items; `columns` are the types of the attributes."""
    if name not in columns:
        listed = ", ".join(columns) or "none"
        raise InputError(f"item must be an attribute, got {name!r}", hint=f"the attributes are: {listed}")
    if not can_name(columns[name]):
        raise InputError(
            f"item must be an attribute of strings or 64-bit integers, {name!r} is {columns[name]}"
        )
