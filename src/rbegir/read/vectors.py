"""Files of vectors, read in blocks: they may be larger than memory.

    .npy          numbers [count, dims], as numpy.save writes them
    .fvecs        per vector: its number of dimensions (int32), then as many float32; little-endian
    .bvecs        the same with uint8 instead of float32
    .parquet      one column of lists of numbers; other columns are id, text and attributes

The first three are mapped into memory. Arrays of Python objects are never read: that would be pickle.

    for batch in read_vectors("sift.fvecs"):
        batch["vector"]      # a list of one length per row
"""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import is_list
from rbegir.errors import CorruptError, FileError, InputError
from rbegir.read.pairs import Reading
from rbegir.read.parquet import ParquetSource
from rbegir.read.rows import Skipped
from rbegir.read.source import FileRequest, attributes_of, check_readable, reading, require_columns

BLOCK_VALUES = 1 << 22  # in a batch: 16 MB of float32
CHECKED_ROWS = 1 << 20  # whose dimensions are compared at a time
HEADER = 4  # bytes in front of a vector

Array = npt.NDArray[Any]


def map_vectors(path: str | os.PathLike[str]) -> Array:
    """The array of a .npy file, or the vectors [count, dims] of a .fvecs or .bvecs file, mapped."""
    path = Path(path)
    check_readable(path)
    suffix = path.suffix.lower()
    return _map_vecs(path, suffix) if suffix in (".fvecs", ".bvecs") else _map_npy(path)


def _map_npy(path: Path) -> Array:
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        if zipfile.is_zipfile(path):
            raise FileError(
                f"{path} holds several arrays, expected one", hint="save one array with numpy.save"
            ) from None
        raise FileError(
            f"{path} is not a complete NumPy array file: {error}",
            hint="write one with numpy.save; arrays of Python objects are never read",
        ) from error


def _map_vecs(path: Path, suffix: str) -> Array:
    whole = np.memmap(path, np.uint8, "r")
    dims = int.from_bytes(whole[:HEADER].tobytes(), "little", signed=True)
    kind = np.dtype("<f4" if suffix == ".fvecs" else "u1")
    size = HEADER + dims * kind.itemsize
    if dims < 1 or len(whole) < size:
        raise CorruptError(
            f"{path} is not a whole {suffix} file: its first vector has {dims} dimensions, "
            f"the file {len(whole)} bytes",
            hint="copy or write the file again",
        )
    count = len(whole) // size
    rows = whole[: count * size].reshape(count, size)  # [count, bytes of a vector]
    for start in range(0, count, CHECKED_ROWS):
        other = (rows[start : start + CHECKED_ROWS, :HEADER] != rows[0, :HEADER]).any(axis=1)
        if other.any():
            row = start + int(np.argmax(other))
            found = int.from_bytes(rows[row, :HEADER].tobytes(), "little", signed=True)
            raise CorruptError(
                f"{path}: vector {row} has {found} dimensions, those before it {dims}",
                hint="all vectors of a file must have one length; copy or write the file again",
            )
    if len(whole) % size:
        raise CorruptError(
            f"{path} is cut short: {len(whole) % size} of {size} bytes of its last vector are there",
            hint="copy or write the file again",
        )
    vectors: Array = rows[:, HEADER:].view(kind)
    return vectors


def list_vectors(column: pa.Array, name: str) -> Array:
    """A column of equally long lists of numbers as [count, dims]."""
    kind = column.type
    numbers = is_list(kind) and (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    )
    if not numbers:
        raise InputError(f"column {name!r} must hold lists of floats, got {kind}")
    lengths = column.value_lengths().unique().to_pylist() if len(column) else []
    if len(lengths) != 1 or not lengths[0]:
        raise InputError(f"column {name!r} must hold vectors of one length, got {lengths[:5]}")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat.reshape(len(column), lengths[0]))


class VectorStream:
    """Vectors as RecordBatches: `vector`, and in a table also `text`, `id` and attributes.

    `progress` is the fraction of the file that the latest iteration has read.
    """

    rows: int
    dims: int
    path: Path

    def __init__(self) -> None:
        self.progress = 0.0
        self.skipped = Skipped()  # no row ever is: a bad vector is an error

    def _blocks(self, *, alone: bool) -> Iterator[tuple[Array, pa.Table | None]]:
        """The vectors [rows, dims] of the file, with their other columns unless they are read alone."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        done = 0
        for block, others in self._blocks(alone=False):
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                raise InputError(
                    f"{self.path}: vector {done + int(np.argmin(finite))} holds NaN or infinity",
                    hint="drop or repair such vectors",
                )
            done += len(block)
            self.progress = done / self.rows
            flat = pa.array(np.ascontiguousarray(block).ravel())
            columns = {"vector": pa.FixedSizeListArray.from_arrays(flat, self.dims)}
            if others is not None:
                columns |= {name: others[name].combine_chunks() for name in others.column_names}
            yield pa.RecordBatch.from_pydict(columns)

    def some(self, count: int, seed: int = 0) -> Array:
        """At most `count` vectors, drawn without replacement, in the order of the file."""
        drawn = np.random.default_rng(seed).choice(self.rows, min(count, self.rows), replace=False)
        chosen, found, start = np.sort(drawn), [], 0
        for block, _ in self._blocks(alone=True):
            low, high = np.searchsorted(chosen, (start, start + len(block)))
            found.append(block[chosen[low:high] - start])
            start += len(block)
        return np.concatenate(found)


class MappedVectors(VectorStream):
    """The vectors of a .npy, .fvecs or .bvecs file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.vectors = path, map_vectors(path)
        if self.vectors.ndim != 2 or self.vectors.dtype.kind not in "fiu" or not self.vectors.size:
            raise InputError(
                f"{path} is {self.vectors.dtype} {list(self.vectors.shape)}; "
                "expected vectors, numbers [count, dims]"
            )
        self.rows, self.dims = self.vectors.shape

    def _blocks(self, *, alone: bool) -> Iterator[tuple[Array, pa.Table | None]]:
        size = max(1, BLOCK_VALUES // self.dims)
        for start in range(0, self.rows, size):
            yield self.vectors[start : start + size], None


class VectorTable(VectorStream):
    """A column of a Parquet file, with other columns."""

    def __init__(self, path: Path, vector_column: str, wanted: Reading) -> None:
        super().__init__()
        if path.suffix.lower() not in (".parquet", ".pq"):
            raise InputError(f"{path} has no columns of vectors", hint="name a Parquet file")
        check_readable(path)
        self.path, self._vector, self._id_type = path, vector_column, wanted.id_type
        with reading(path):
            self._source = ParquetSource(path)
        require_columns(self._source, [("vector", vector_column)])
        self._renamed = {wanted.text_column: "text", wanted.id_column: "id"}
        attributes = attributes_of(self._source, (vector_column, *self._renamed), wanted.columns)
        kept = (*self._renamed, *attributes)
        self._others = [name for name in self._source.columns if name in kept]
        self.rows = sum(group.rows for group in self._source.groups)
        first = next(self._blocks(alone=True), None)
        if first is None:
            raise InputError(f"{path} holds no vector")
        self.dims = int(first[0].shape[1])

    def _blocks(self, *, alone: bool) -> Iterator[tuple[Array, pa.Table | None]]:
        names = [self._vector, *([] if alone else self._others)]
        with reading(self.path):
            for block in self._source.blocks(FileRequest(names, lambda number, reason: None)):
                vectors = list_vectors(block.batch.column(self._vector), self._vector)
                if vectors.shape[1] != getattr(self, "dims", vectors.shape[1]):
                    raise InputError(
                        f"{self.path}: vectors have {vectors.shape[1]} dimensions, the first {self.dims}"
                    )
                yield vectors, None if alone else self._table(block.batch)

    def _table(self, batch: pa.RecordBatch) -> pa.Table:
        columns = {self._renamed.get(name, name): batch.column(name) for name in self._others}
        if self._id_type is not None and "id" in columns:
            columns["id"] = pc.cast(columns["id"], self._id_type)
        return pa.table(columns)


def read_vectors(
    path: str | os.PathLike[str], vector_column: str | None = None, **columns: Any
) -> VectorStream:
    """Stream vectors from a .npy, .fvecs or .bvecs file, or from a column of a Parquet file.

    `columns` are those of a table, as `read_texts` takes them: text_column, id_column, id_type and columns.
    """
    if vector_column is None:
        return MappedVectors(Path(path))
    return VectorTable(Path(path), vector_column, Reading(**columns))
