"""CSV and TSV, parsed by Arrow.

CSV has quotes, and a quoted field may hold a newline. TSV has only tabs and newlines: a quote is a character
like any other, because one stray quote must not swallow a million rows. The first row names the columns.

Texts are read as binary, since Arrow would fail a whole block for one invalid byte. Rows with a wrong number
of fields are reported by Arrow's invalid-row handler. It numbers rows only when parsing is single-threaded,
and gives up on the whole file if such a row is not UTF-8. So invalid bytes are replaced by a marker, a
noncharacter of Unicode, before Arrow parses them, and turned back afterwards.

A quote that is never closed would silently swallow the rest of a CSV file into one field. Therefore a row of
markers with one field too many is appended: if it is not reported as malformed, a quote is open.
"""

from __future__ import annotations

import csv
import gzip
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from rbegir.errors import InputError
from rbegir.read.source import (
    BLOCK_BYTES,
    EMPTY,
    MAX_ROW_BYTES,
    Block,
    ByteStream,
    FileRequest,
    Source,
    line_blocks,
)

WRONG_FIELDS = "wrong number of fields"
_MARKER = "\U0010ffff"
_MISFIT = re.compile(r"In CSV column #(\d+): .*conversion error to (\S+): invalid value '(.*)'", re.DOTALL)
_KINDS = {"int64": "whole numbers", "double": "numbers", "bool": "truth values"}
_WRONG = re.compile("[\udc80-\udcff]+")  # what errors="surrogateescape" makes of bytes that are not UTF-8


class DelimitedSource(Source):
    """One CSV (quoted) or TSV file with a header."""

    def __init__(self, path: Path, *, quoted: bool) -> None:
        self.path = path
        self._quoted = quoted
        self._delimiter = "," if quoted else "\t"
        with ByteStream(path) as stream:
            start = pa.BufferReader(_Utf8(stream, path).read(BLOCK_BYTES))
            try:
                rows = pyarrow.csv.read_csv(start, **self._options((), lambda row: "skip", None))
                self.columns = rows.column_names
            except pa.ArrowInvalid as error:
                if "Empty CSV file" in str(error):
                    raise InputError(f"{path} is empty", hint=EMPTY) from None
                raise

    def blocks(self, asked: FileRequest) -> Iterator[Block]:
        # numbers of malformed rows from `start` on, ascending; Arrow's row 1 is the header
        bad: list[int] = []
        last = _MARKER + self._delimiter * len(self.columns)
        ended = False

        def skip(row: pyarrow.csv.InvalidRow) -> str:
            nonlocal ended
            if row.text == last:
                ended = True
            elif not text.stopped:
                bad.append(row.number - 2)
                asked.malformed(row.number - 2, WRONG_FIELDS)
            return "skip"

        with ByteStream(self.path) as stream:
            start = 0
            text = _Utf8(stream, self.path, last)
            with self._opened(text, asked.names, skip, asked.others) as reader:
                for batch in self._batches(reader):
                    if text.repaired:
                        for name in asked.names:
                            broken = pc.replace_substring(batch.column(name), _MARKER.encode(), b"\xff")
                            batch = batch.set_column(batch.schema.get_field_index(name), name, broken)
                    numbers = np.arange(start, start + batch.num_rows + len(bad))
                    numbers = numbers[~np.isin(numbers, bad)][: batch.num_rows]
                    yield Block(batch, numbers, stream.done)
                    start = int(numbers.max(initial=start - 1)) + 1
                    del bad[: bisect_left(bad, start)]
        if not ended:
            raise InputError(
                f"{self.path} opens a quote that is never closed", hint='write a quote inside a field as ""'
            )

    def place(self, number: int) -> str:
        """The line of a row; Arrow does not keep it, so lines (or quoted records) are counted again."""
        csv.field_size_limit(MAX_ROW_BYTES)  # the row may be a bad one because its field is long
        opened = gzip.open if self.path.suffix.lower() == ".gz" else open
        newline = "" if self._quoted else None
        with opened(self.path, "rt", encoding="utf-8", errors="replace", newline=newline) as file:
            seen = -2  # the header becomes −1
            line = 0
            reader = csv.reader(file) if self._quoted else None
            for record in reader or file:
                seen += record not in ([], "\n")
                line += 1
                if seen == number:
                    break
                line = reader.line_num if reader else line
        return f"line {line:,}"

    def _batches(self, reader: pyarrow.csv.CSVStreamingReader) -> Iterator[pa.RecordBatch]:
        """The batches of a reader; a value that does not fit the type of its column is explained."""
        try:
            yield from reader
        except pa.ArrowInvalid as error:
            found = _MISFIT.search(str(error))
            if not found:
                raise
            column, kind, value = self.columns[int(found[1])], found[2], found[3]
            raise InputError(
                f"the column {column!r} of {self.path} holds {_KINDS.get(kind, kind)} in its first rows, "
                f"but {value!r} later",
                hint="the first rows decide its type: use Parquet, write all of its values alike, "
                "or leave it out with --columns (columns= in Python)",
            ) from None

    @contextmanager
    def _opened(
        self, text: _Utf8, names: Sequence[str], skip: object, others: Sequence[str] | None
    ) -> Iterator[pyarrow.csv.CSVStreamingReader]:
        """A reader of a text.

        A thread of Arrow reads ahead; if Python ended before it, the process would abort. So what it has read
        is used up at the end.
        """
        reader = pyarrow.csv.open_csv(text, **self._options(names, skip, others))
        try:
            yield reader
        finally:
            text.stopped = True
            with suppress(pa.ArrowInvalid):
                for _ in reader:
                    pass

    def _options(self, names: Sequence[str], skip: object, others: Sequence[str] | None) -> dict[str, Any]:
        quoting = {"quote_char": '"', "double_quote": True} if self._quoted else {"quote_char": False}
        return {
            "read_options": pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            "parse_options": pyarrow.csv.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=self._quoted,
                invalid_row_handler=skip,
                **quoting,
            ),
            "convert_options": pyarrow.csv.ConvertOptions(
                include_columns=None if others is None else [*names, *others],
                column_types={name: pa.binary() for name in names},
            ),
        }


class _Utf8:
    """The bytes of a stream as valid UTF-8, with markers for invalid bytes and one row appended."""

    closed = False

    def __init__(self, stream: ByteStream, path: Path, last: str = "") -> None:
        self._blocks = chain(line_blocks(stream, path), [last.encode()])
        self._rest = b""
        self.repaired = False
        self.stopped = False  # nothing more is wanted

    def read(self, size: int) -> bytes:
        if self.stopped:
            return b""
        for block in self._blocks:
            try:
                block.decode()
            except UnicodeDecodeError:
                self.repaired = True
                block = _WRONG.sub(_MARKER, block.decode(errors="surrogateescape")).encode()
            self._rest += block if block.endswith(b"\n") else block + b"\n"
            if len(self._rest) >= size:
                break
        out, self._rest = self._rest[:size], self._rest[size:]
        return out
