"""Parquet: typed columns, read by row groups; invalid UTF-8 and nulls are possible here too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import add
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rbegir.errors import CorruptError
from rbegir.read.source import Block, Malformed, Wanted

BATCH_ROWS = 1 << 16


class ParquetSource:
    """One Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                self.columns = list(file.schema_arrow.names)
                self.rows: int = file.metadata.num_rows
        except pa.ArrowInvalid as error:  # no footer: cut short, or not Parquet at all
            raise CorruptError(
                f"{path} is not a whole Parquet file: {str(error).splitlines()[0].split('. ')[0]}",
                hint="copy or write the file again",
            ) from None

    def blocks(
        self,
        names: Sequence[str],
        malformed: Malformed,
        *,
        others: bool = False,
        wanted: Wanted | None = None,
    ) -> Iterator[Block]:
        columns = None if others else list(names)
        with pq.ParquetFile(self.path) as file:
            start, total = 0, file.metadata.num_rows
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                if wanted is None or wanted(start, end).any():
                    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                        behind = start + batch.num_rows
                        yield Block(batch, partial(add, start), behind / total)
                        start = behind
                start = end

    def place(self, number: int) -> str:
        return f"row {number + 1:,}"
