"""JSON lines: one object a line.

Arrow parses a block of lines at about two million objects a second, but one bad line fails the whole block.
Such a block is parsed again line by line with the standard library, which finds the bad lines and keeps the
others; so clean files are fast and dirty files are right. The columns and their types are those of the first
block: a missing value is null, and a column that first appears later is an error rather than silently lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from rbegir.errors import InputError
from rbegir.tables.source import BLOCK_BYTES, NOT_UTF8, Block, ByteStream, Malformed, line_blocks

NOT_JSON = "not a JSON object"
WRONG_TYPE = "wrong type of value"
_PROBE_ROWS = 1000


class JsonLinesSource:
    """One file of JSON objects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ByteStream(path) as stream:
            block = next(line_blocks(stream, path), b"")
        if not block.strip():
            raise InputError(f"{path} is empty")
        self._schema = self._infer(block)
        self.columns = list(self._schema.names)

    def _infer(self, block: bytes) -> pa.Schema:
        """The columns of the first block: Arrow's types, or those of its first good rows if some are bad."""
        try:
            options = pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(block), BLOCK_BYTES))
            schema = pyarrow.json.read_json(pa.BufferReader(block), read_options=options).schema
        except (pa.ArrowInvalid, UnicodeDecodeError):
            objects = [found for line in block.splitlines() if (found := _parse(line)) is not None]
            if not objects:
                raise InputError(
                    f"{self.path} holds no JSON object in its first lines",
                    hint="one object a line is expected",
                ) from None
            names = dict.fromkeys(name for found in objects for name in found)
            columns = ([found.get(name) for found in objects] for name in names)
            schema = pa.schema(
                [(name, _type_of(values)) for name, values in zip(names, columns, strict=True)]
            )
        return pa.schema([f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in schema])

    def blocks(self, names: Sequence[str], malformed: Malformed, *, others: bool = False) -> Iterator[Block]:
        fields = [
            field.with_type(_loose(field.type)) if field.name in names else field for field in self._schema
        ]
        schema = pa.schema([field for field in fields if others or field.name in names])
        with ByteStream(self.path) as stream:
            start = 0
            for block in line_blocks(stream, self.path):
                lines = [line for line in block.split(b"\n") if not line.isspace() and line]
                batch, kept = self._fast(block, schema, len(lines), closed=others), None
                if batch is None:
                    batch, kept = self._slow(lines, start, schema, malformed, closed=others)
                yield Block(batch, partial(_number, kept, start), stream.done)
                start += len(lines)

    def _fast(self, block: bytes, schema: pa.Schema, rows: int, *, closed: bool) -> pa.RecordBatch | None:
        """The block by Arrow; None when it holds anything that Arrow refuses or splits otherwise."""
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(block),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="error" if closed else "ignore"
                ),
            ).select(schema.names)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        if table.num_rows != rows:
            return None
        return table.combine_chunks().to_batches()[0] if rows else pa.RecordBatch.from_pylist([], schema)

    def _slow(
        self, lines: list[bytes], start: int, schema: pa.Schema, malformed: Malformed, *, closed: bool
    ) -> tuple[pa.RecordBatch, list[int]]:
        """The block line by line → the good rows, and their positions among the lines."""
        kept: list[int] = []
        rows: list[dict[str, Any]] = []
        for position, line in enumerate(lines):
            found = _parse(line)
            if found is None:
                malformed(start + position, NOT_JSON)
                continue
            unknown = sorted(found.keys() - set(schema.names)) if closed else []
            if unknown:
                place = self.place(start + position)
                raise InputError(
                    f"{self.path}: the column {unknown[0]!r} first appears at {place}, too late to be read",
                    hint="give it in the first rows too (null where there is none), or use Parquet",
                )
            rows.append(found)
            kept.append(position)
        columns, wrong = [], dict[int, str]()
        for field in schema:
            values, refused = _convert([row.get(field.name) for row in rows], field.type)
            columns.append(values)
            wrong = refused | wrong
        for i in sorted(wrong):
            malformed(start + kept[i], wrong[i])
        good = [i for i in range(len(rows)) if i not in wrong]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema).take(pa.array(good, pa.int64()))
        return batch, [kept[i] for i in good]

    def place(self, number: int) -> str:
        with ByteStream(self.path) as stream:
            line = seen = 0
            for block in line_blocks(stream, self.path):
                for text in block.removesuffix(b"\n").split(b"\n"):
                    line += 1
                    seen += bool(text.strip())
                    if seen == number + 1:
                        return f"line {line:,}"
        raise AssertionError(f"row {number} is not in {self.path}")


def _number(kept: list[int] | None, start: int, position: int) -> int:
    """The number of a row: the slow way keeps only some lines of a block, the fast way all of them."""
    return start + (position if kept is None else kept[position])


def _loose(kind: pa.DataType) -> pa.DataType:
    """The type to ask for where nothing is to be inferred: 1 may be followed by 0.5, a date by any text."""
    return pa.float64() if pa.types.is_integer(kind) or pa.types.is_floating(kind) else pa.string()


def _parse(line: bytes) -> dict[str, Any] | None:
    """One object, or None. Bytes that are not UTF-8 become lone surrogates, which Arrow refuses later."""
    try:
        found = json.loads(line.decode("utf-8", errors="surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _type_of(values: list[Any]) -> pa.DataType:
    """The type of the first values that are not null; a mixed column is what its first value is."""
    present = [value for value in values if value is not None][:_PROBE_ROWS]
    while present:
        try:
            return pa.array(present).type
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            present = present[: len(present) // 2]
    return pa.null()


def _convert(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Values as one array of a type, and why the values at some positions are refused (null in the array)."""
    try:
        return pa.array(values, kind), {}
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        refused = {}
        for i, value in enumerate(values):
            try:
                pa.array([value], kind)
            except UnicodeEncodeError:
                refused[i] = NOT_UTF8
            except (pa.ArrowException, OverflowError):
                refused[i] = WRONG_TYPE
        return pa.array([None if i in refused else v for i, v in enumerate(values)], kind), refused
