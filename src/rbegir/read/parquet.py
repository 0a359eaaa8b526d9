"""Parquet: typed columns, read by row groups; and the usable texts of many files, cut into chunks.

Row groups can be read independently, so the workers of a cluster share files by row group. Rows without a
usable text are left out, so the position of the millionth keyword is known only after counting: a first pass
counts the usable rows of every row group, and a chunk is then a run of usable rows, given as slices of row
groups. Rows are checked as on one machine (`TextStream`), so the result is the same.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rbegir.errors import CorruptError, FileError, InputError
from rbegir.read.pairs import Reading, TextStream
from rbegir.read.source import Block, FileRequest, Source

BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Group:
    """A row group of a file."""

    path: str
    number: int
    first_row: int  # in the file
    rows: int


class ParquetSource(Source):
    """One Parquet file, or one row group of it; rows are numbered as in the whole file."""

    def __init__(self, path: Path, group: Group | None = None) -> None:
        self.path = path
        self.groups: list[Group] = []  # those that have rows
        try:
            with pq.ParquetFile(path) as file:
                self.schema = file.schema_arrow.remove_metadata()
                row = 0
                for number in range(file.num_row_groups):
                    rows = file.metadata.row_group(number).num_rows
                    if rows:
                        self.groups.append(Group(str(path), number, row, rows))
                    row += rows
        except pa.ArrowInvalid as error:  # no footer: truncated, or not Parquet at all
            raise CorruptError(
                f"{path} is not a whole Parquet file: {str(error).splitlines()[0].split('. ')[0]}",
                hint="copy or write the file again",
            ) from None
        if group is not None:
            self.groups = [group]
        self.columns = list(self.schema.names)
        self.rows = sum(group.rows for group in self.groups)

    def blocks(self, asked: FileRequest) -> Iterator[Block]:
        columns = None if asked.others is None else [*asked.names, *asked.others]
        behind, rows = 0, sum(group.rows for group in self.groups)
        with pq.ParquetFile(self.path) as file:
            for group in self.groups:
                start, end = group.first_row, group.first_row + group.rows
                if asked.wanted is None or asked.wanted(start, end).any():
                    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group.number], columns=columns):
                        done = (behind + start + batch.num_rows - group.first_row) / rows
                        yield Block(batch, np.arange(start, start + batch.num_rows), done)
                        start += batch.num_rows
                behind += group.rows

    def place(self, number: int) -> str:
        return f"row {number + 1:,}"


@dataclass(frozen=True)
class Slice:
    """The usable rows [start, start + count) of a row group."""

    group: Group
    start: int
    count: int


def find_files(texts: str | Path) -> list[Path]:
    """A Parquet file, or the Parquet files of a directory ordered by name."""
    path = Path(texts).absolute()
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if path.is_dir() and not found:
        raise FileError(f"{path} holds no .parquet file", hint="name a Parquet file or a directory of them")
    if not path.is_dir() and path.suffix.lower() not in (".parquet", ".pq"):
        raise InputError(
            f"a cluster reads Parquet, and {path} does not end in .parquet",
            hint="write the texts as Parquet, or build without --cluster",
        )
    return found


def find_groups(files: Sequence[Path], reading: Reading) -> list[Group]:
    """The row groups of the files, in order; all files must have the same columns."""
    groups: list[Group] = []
    first: pa.Schema | None = None
    for path in files:
        if not path.exists():
            raise FileError(f"{path} does not exist")
        source = ParquetSource(path)
        TextStream(source, reading)  # refuses a file without these columns
        if first is not None and not source.schema.equals(first):
            raise InputError(
                f"{path} and {files[0]} have different columns: {_describe(source.schema)} and "
                f"{_describe(first)}",
                hint="write all files with the same columns and types",
            )
        first = source.schema
        groups += source.groups
    return groups


def count_usable(group: Group, reading: Reading) -> tuple[int, Counter[str]]:
    """The number of usable rows of a row group, and of the others by reason."""
    stream = TextStream(ParquetSource(Path(group.path), group), reading)
    count = sum(batch.num_rows for _, batch in stream.part(None))
    return count, stream.skipped.reasons


def cut(usable: Sequence[tuple[Group, int]], rows: int) -> list[list[Slice]]:
    """Cut row groups, given their numbers of usable rows, into chunks of `rows`; the last may be shorter."""
    chunks: list[list[Slice]] = []
    room = 0
    for group, count in usable:
        start = 0
        while start < count:
            if not room:
                chunks.append([])
                room = rows
            taken = min(room, count - start)
            chunks[-1].append(Slice(group, start, taken))
            start, room = start + taken, room - taken
    return chunks


def read_chunk(chunk: Sequence[Slice], reading: Reading) -> pa.Table:
    """The usable rows of a chunk, with the columns text, id (if there is one) and the attributes."""
    batches: list[pa.RecordBatch] = []
    for part in chunk:
        skip, missing = part.start, part.count
        stream = TextStream(ParquetSource(Path(part.group.path), part.group), reading)
        for _, batch in stream.part(None):
            here = batch.slice(skip, missing)
            skip = max(0, skip - batch.num_rows)
            missing -= here.num_rows
            if here.num_rows:
                batches.append(here)
            if not missing:
                break
        if missing:
            raise InputError(
                f"{part.group.path} has changed since its rows were counted",
                hint="leave the input as it is until the build is complete, then start again",
            )
    return pa.Table.from_batches(batches)


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
