"""Files of codes or float vectors: Parquet and Hugging Face datasets, and NumPy files.

A table of codes has these columns:

    id        int64 or string
    text      string, where there are texts
    plane_0, plane_1, …    binary, n / 8 bytes each: plane t of the code, dimension 8i + j in bit j of byte i
    …         the attributes, under their names

A table of vectors has one column of float lists instead of planes, which a Binarizer encodes. Codes are read
and written as a stream; vectors of a table are read as a whole, those of other files are mapped into memory.

A NumPy file holds codes as uint64 [planes, count, words], or vectors as float [count, dims]. Vectors may also
come as .fvecs or .bvecs (`rbegir.read.vectors`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rbegir.base.arguments import check_ids
from rbegir.base.progress import Progress
from rbegir.codes.planes import MAX_KEYWORD_PLANES, WORD, Codes
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.encoder import Encoder
from rbegir.errors import FileError, InputError, needing
from rbegir.index.exchange.transfer import (
    ROWS,
    Keywords,
    keyword_batches,
    make_index,
    make_vector_index,
    read_codes,
    staged,
)
from rbegir.index.store import Index
from rbegir.read.vectors import list_vectors, map_vectors

if TYPE_CHECKING:
    from datasets import Dataset

PLANE = "plane_"


def to_tables(source: Index | Codes) -> Iterator[pa.Table]:
    """The keywords of an index, or codes alone, as rows of the table above."""
    for codes, table in keyword_batches(source):
        first = 2 if "text" in table.column_names else 1  # after id and text
        for t, plane in enumerate(codes.planes):  # [count, words]
            name, raw = f"{PLANE}{t}", plane.astype("<u8", copy=False).tobytes()
            if name in table.column_names:
                raise InputError(f"an attribute is called {name!r}, which names a column of codes")
            column = pa.Array.from_buffers(pa.binary(codes.n // 8), len(codes), [None, pa.py_buffer(raw)])
            table = table.add_column(first + t, name, column.cast(pa.binary()))
        yield table


def from_batch(batch: pa.RecordBatch, start: int = 0) -> Keywords:
    """A batch of the table above as keywords; without ids they are numbered from `start`."""
    names = plane_columns(batch.schema.names)
    planes = [_bytes_of(batch.column(name), name) for name in names]  # [count, n / 8] each
    if len({plane.shape[1] for plane in planes}) > 1:
        raise InputError(f"the columns {', '.join(names)} hold codes of different lengths")
    size = planes[0].shape[1]
    words = np.stack(planes).view("<u8").astype(np.uint64, copy=False)  # [planes, count, words]
    return Codes(words, size * 8), _others(batch, names, start)


def plane_columns(names: Iterable[str]) -> list[str]:
    """The names plane_0, plane_1 … that are present; raises if there is none or a gap."""
    there = set(names)
    found = [f"{PLANE}{t}" for t in range(MAX_KEYWORD_PLANES) if f"{PLANE}{t}" in there]
    if not found or found != [f"{PLANE}{t}" for t in range(len(found))]:
        raise InputError(
            f"the table has no columns plane_0, plane_1 … of codes, but {', '.join(sorted(there))}",
            hint="name the column of float vectors with vector_column",
        )
    return found


def export_parquet(source: Index | Codes, path: str | os.PathLike[str]) -> None:
    """Write codes, ids, texts and attributes as one Parquet file."""
    tables = to_tables(source)
    first = next(tables, None)
    if first is None:
        raise InputError("there is nothing to export: no keywords")
    with staged(path) as stage, pq.ParquetWriter(stage, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table.cast(first.schema))


def import_parquet(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    vector_column: str | None = None,
    encoder: Encoder | None = None,
) -> Index:
    """Make a new index of a Parquet file of codes or, with `vector_column`, of vectors.

    `encoder` made the codes and is stored in the index, or it is the Binarizer for the vectors.
    """
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise FileError(f"{path} is not a Parquet file: {error}") from error
    with file:
        try:
            return _import(file.schema_arrow.names, file.iter_batches(ROWS), out, vector_column, encoder)
        except (OSError, pa.ArrowInvalid) as error:
            raise FileError(f"{path} cannot be read: {error}") from error


def to_dataset(source: Index | Codes) -> Dataset:
    """Codes, ids, texts and attributes as a Hugging Face Dataset, in memory."""
    datasets = _datasets()
    made: Dataset = datasets.Dataset(pa.concat_tables(to_tables(source)))
    return made


def import_dataset(
    dataset: Dataset,
    out: str | os.PathLike[str],
    *,
    vector_column: str | None = None,
    encoder: Encoder | None = None,
) -> Index:
    """Make a new index of a Hugging Face Dataset of codes or, with `vector_column`, of vectors."""
    datasets = _datasets()
    if not isinstance(dataset, datasets.Dataset):
        raise InputError(
            f"dataset must be a datasets.Dataset, got {type(dataset).__name__}",
            hint="choose one split of a DatasetDict",
        )
    plain = dataset.with_format("arrow")
    parts = (plain[low : low + ROWS] for low in range(0, len(plain), ROWS))
    batches = (batch for part in parts for batch in part.combine_chunks().to_batches())
    return _import(dataset.column_names, batches, out, vector_column, encoder)


def _import(
    names: list[str],
    batches: Iterator[pa.RecordBatch],
    out: str | os.PathLike[str],
    vector_column: str | None,
    encoder: Encoder | None,
) -> Index:
    if vector_column is None:
        plane_columns(names)  # refuses a table without them

        def keywords() -> Iterator[Keywords]:
            start = 0
            for batch in batches:
                if batch.num_rows:
                    yield from_batch(batch, start)
                    start += batch.num_rows

        return make_index(out, keywords(), encoder)
    if vector_column not in names:
        raise InputError(f"there is no column {vector_column!r}; the columns are {', '.join(names)}")
    if encoder is not None and not isinstance(encoder, Binarizer):
        raise InputError(f"vectors need a Binarizer, got {type(encoder).__name__}", hint="leave encoder out")
    table = pa.Table.from_batches(list(batches)).combine_chunks()
    batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)
    vectors = list_vectors(batch.column(vector_column), vector_column)
    return make_vector_index(out, vectors, _others(batch, [vector_column], 0), encoder)


def _others(batch: pa.RecordBatch, taken: list[str], start: int) -> pa.Table:
    """The ids, texts and attributes beside the codes or vectors; missing ids are numbered from `start`."""
    table = pa.Table.from_batches([batch]).drop_columns(taken)
    if "id" in table.column_names:
        return table
    return table.append_column("id", pa.array(np.arange(start, start + batch.num_rows)))


def _bytes_of(column: pa.Array, name: str) -> npt.NDArray[np.uint8]:
    """A column of equally long byte strings as [count, bytes]."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if not any(kind(column.type) for kind in kinds):
        raise InputError(f"column {name!r} must hold bytes, got {column.type}")
    if column.null_count:
        raise InputError(f"column {name!r} has {column.null_count} rows without a code")
    lengths = sorted(pc.binary_length(column).unique().to_pylist())
    if len(lengths) != 1 or lengths[0] * 8 % WORD or not lengths[0]:
        raise InputError(f"column {name!r} must hold codes of n / 8 bytes, got lengths {lengths[:5]}")
    return np.frombuffer(b"".join(column.to_pylist()), np.uint8).reshape(len(column), -1)


def _datasets() -> Any:
    with needing("Hugging Face datasets need the package datasets", "pip install datasets"):
        import datasets
    return datasets


def export_npy(source: Index | Codes, path: str | os.PathLike[str]) -> None:
    """Write codes, ordered by row, as one .npy file: uint64 [planes, count, words]."""
    codes, _ = read_codes(source)
    with staged(path) as stage, stage.open("wb") as file:
        np.save(file, np.ascontiguousarray(codes.planes.astype("<u8", copy=False)), allow_pickle=False)


def read_npy(path: str | os.PathLike[str]) -> Codes | np.ndarray[Any, Any]:
    """The codes of a uint64 file, or the mapped vectors of a float, .fvecs or .bvecs file."""
    name, array = Path(path), map_vectors(path)
    if array.dtype == np.uint64 and array.ndim == 3:
        return Codes(np.ascontiguousarray(array), array.shape[2] * WORD)
    if array.ndim == 2 and (np.issubdtype(array.dtype, np.floating) or name.suffix.lower() == ".bvecs"):
        return array
    raise InputError(
        f"{name} is {array.dtype} {list(array.shape)}; "
        "expected codes, uint64 [planes, count, words], or vectors, float [count, dims]"
    )


def import_npy(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    ids: Any = None,
    binarizer: Binarizer | None = None,
    progress: Progress = None,
) -> Index:
    """Make a new index of a file of codes, or of vectors, which a Binarizer encodes.

    `progress` is called with (vectors encoded, all), False for none; by default a bar is shown in a terminal.
    """
    found = read_npy(path)
    count = len(found)
    given = pa.array(np.arange(count)) if ids is None else check_ids(ids)
    if len(given) != count:
        raise InputError(f"ids has {len(given)} values for {count} rows of {path}")
    table = pa.table({"id": given})
    if not isinstance(found, Codes):
        return make_vector_index(out, found, table, binarizer, progress)
    if not 1 <= found.plane_count <= MAX_KEYWORD_PLANES:
        raise InputError(f"{path} has {found.plane_count} planes, keywords have 1 to {MAX_KEYWORD_PLANES}")
    return make_index(out, [(found, table)], binarizer)
