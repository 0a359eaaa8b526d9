"""Texts in Parquet files, as pieces that any process can read on its own.

A Parquet file is made of row groups, each readable without the others. Rows without a usable text are left
out, so where the millionth keyword stands is known only after counting: the first pass counts the usable rows
of every row group, and a piece is then a run of usable rows, written as slices of row groups. Rows are
checked by the same code as on one machine (`tables.texts`), so the same ones are left out, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rbegir.errors import FileError, InputError
from rbegir.read.parquet import BATCH_ROWS, ParquetSource
from rbegir.read.source import Block, Malformed, Wanted
from rbegir.read.texts import TextStream


@dataclass(frozen=True)
class Reading:
    """How texts are read."""

    text_column: str = "text"
    id_column: str = "id"
    strict: bool = False


@dataclass(frozen=True)
class Group:
    """A row group of a file."""

    path: str
    number: int
    first_row: int  # in the file
    rows: int


@dataclass(frozen=True)
class Slice:
    """Usable rows [start, start + count) of a row group."""

    group: Group
    start: int
    count: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Slice:
        return cls(Group(**found["group"]), found["start"], found["count"])


class GroupSource:
    """One row group as a source of rows, numbered as in the whole file."""

    def __init__(self, group: Group) -> None:
        self._group = group
        whole = ParquetSource(Path(group.path))
        self.path, self.columns, self.place, self.rows = whole.path, whole.columns, whole.place, group.rows

    def blocks(
        self,
        names: Sequence[str],
        malformed: Malformed,
        *,
        others: bool = False,
        wanted: Wanted | None = None,
    ) -> Iterator[Block]:
        group, start = self._group, 0
        with pq.ParquetFile(self.path) as file:
            columns = None if others else list(names)
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group.number], columns=columns):
                end = start + batch.num_rows
                yield Block(batch, partial(add, group.first_row + start), end / max(group.rows, 1))
                start = end


def find_files(texts: str | Path) -> list[Path]:
    """A Parquet file, or those of a directory in the order of their names."""
    path = Path(texts).absolute()
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if path.is_dir() and not found:
        raise FileError(f"{path} holds no .parquet file", hint="name a Parquet file or a directory of them")
    if not path.is_dir() and path.suffix.lower() not in (".parquet", ".pq"):
        raise InputError(
            f"a cluster reads Parquet, and {path} is not named like it",
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
        source = ParquetSource(path)  # refuses what is no Parquet
        TextStream(source, text_column=reading.text_column, id_column=reading.id_column, strict=False)
        with pq.ParquetFile(path) as file:
            schema, about = file.schema_arrow.remove_metadata(), file.metadata
            if first is not None and not schema.equals(first):
                raise InputError(
                    f"{path} has other columns than {files[0]}: {schema_text(schema)} instead of "
                    f"{schema_text(first)}",
                    hint="write all files with the same columns and types",
                )
            first = schema
            row = 0
            for number in range(about.num_row_groups):
                rows = about.row_group(number).num_rows
                if rows:
                    groups.append(Group(str(path), number, row, rows))
                row += rows
    return groups


def schema_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def count_usable(group: Group, reading: Reading) -> tuple[int, Counter[str]]:
    """Usable rows of a row group, and the others by reason."""
    stream = _stream(group, reading)
    count = sum(batch.num_rows for batch in _batches(stream))
    return count, stream.skipped.reasons


def cut(usable: Sequence[tuple[Group, int]], rows: int) -> list[list[Slice]]:
    """Pieces of `rows` usable rows each, the last one perhaps shorter."""
    pieces: list[list[Slice]] = []
    room = 0
    for group, count in usable:
        start = 0
        while start < count:
            if not room:
                pieces.append([])
                room = rows
            taken = min(room, count - start)
            pieces[-1].append(Slice(group, start, taken))
            start, room = start + taken, room - taken
    return pieces


def read_piece(piece: Sequence[Slice], reading: Reading) -> pa.Table:
    """The usable rows of a piece, with the columns text, id (if there is one) and the attributes."""
    batches: list[pa.RecordBatch] = []
    for part in piece:
        skip, wanted = part.start, part.count
        for batch in _batches(_stream(part.group, reading)):
            here = batch.slice(skip, wanted)
            skip = max(0, skip - batch.num_rows)
            wanted -= here.num_rows
            if here.num_rows:
                batches.append(here)
            if not wanted:
                break
        if wanted:
            raise InputError(
                f"{part.group.path} has changed since its rows were counted",
                hint="leave the input as it is until the build is complete, then start again",
            )
    return pa.Table.from_batches(batches)


def _stream(group: Group, reading: Reading) -> TextStream:
    return TextStream(
        GroupSource(group),
        text_column=reading.text_column,
        id_column=reading.id_column,
        strict=reading.strict,
    )


def _batches(stream: TextStream) -> Iterator[pa.RecordBatch]:
    """The batches of a stream; a row group without a usable row is no error, a whole input of them is."""
    try:
        yield from stream
    except InputError:
        if not stream.skipped.read or stream.skipped.total != stream.skipped.read:
            raise
