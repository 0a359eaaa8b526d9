"""Filling a new index from a stream of any length, one segment in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import refuse_repeats
from rbegir.errors import InputError

if TYPE_CHECKING:
    from rbegir.index.store import Index


SEGMENT_ROWS = 1 << 20


def fill(
    index: Index, batches: Iterable[pa.RecordBatch], segment_rows: int = SEGMENT_ROWS, *, upsert: bool = False
) -> int:
    """Add all batches, `segment_rows` keywords at a time; returns how many.

    An id that comes twice is refused; with `upsert` the last row counts, as if each had come in its own call.
    """
    if segment_rows < 1:
        raise InputError(f"segment_rows must be at least 1, got {segment_rows}")
    added = 0
    for table in _tables(batches, segment_rows):
        texts, ids, attributes = keywords_of(_last_of_each_id(table) if upsert else table)
        if upsert:
            added += len(index.upsert(texts, ids, attributes))
            continue
        if ids is not None:
            refuse_repeats(ids.combine_chunks(), hint="remove all but one, or let upsert keep the last")
        added += len(index.add(texts, ids, attributes))
    return added


def keywords_of(table: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None, dict[str, Any]]:
    """The texts, ids (if there are any) and attributes of a table."""
    if "text" not in table.column_names:
        raise InputError(f"batches must have a column 'text', got {', '.join(table.column_names) or 'none'}")
    ids = table.column("id") if "id" in table.column_names else None
    others = [name for name in table.column_names if name not in ("text", "id")]
    return table.column("text"), ids, {name: _missing_for_nan(table.column(name)) for name in others}


def _last_of_each_id(table: pa.Table) -> pa.Table:
    """The table without rows whose id comes again further down."""
    if "id" not in table.column_names or len(pc.unique(table["id"])) == table.num_rows:
        return table
    places = pa.table({"id": table["id"], "at": np.arange(table.num_rows)})
    return table.take(places.group_by("id").aggregate([("at", "max")])["at_max"].sort())


def _tables(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of `rows` rows; the last may be shorter."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        while size + batch.num_rows >= rows:
            yield pa.Table.from_batches([*held, batch.slice(0, rows - size)])
            batch = batch.slice(rows - size)
            held, size = [], 0
        if batch.num_rows:
            held.append(batch)
            size += batch.num_rows
    if held:
        yield pa.Table.from_batches(held)


def _missing_for_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Tables have no other way to say missing in a column of numbers than NaN; here it is null."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
