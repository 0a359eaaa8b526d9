"""Parquet: typed columns, read by row groups; invalid UTF-8 and nulls are possible here too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import add
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rbegir.errors import CorruptError
from rbegir.tables.source import Block, Malformed

BATCH_ROWS = 1 << 16


class ParquetSource:
    """One Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                self.columns = list(file.schema_arrow.names)
        except pa.ArrowInvalid as error:  # no footer: cut short, or not Parquet at all
            raise CorruptError(
                f"{path} is not a whole Parquet file: {str(error).splitlines()[0].split('. ')[0]}",
                hint="copy or write the file again",
            ) from None

    def blocks(self, names: Sequence[str], malformed: Malformed, *, others: bool = False) -> Iterator[Block]:
        with pq.ParquetFile(self.path) as file:
            total = max(file.metadata.num_rows, 1)
            start = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=None if others else list(names)):
                end = start + batch.num_rows
                yield Block(batch, partial(add, start), end / total)
                start = end

    def place(self, number: int) -> str:
        return f"row {number + 1:,}"
