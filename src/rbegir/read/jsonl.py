"""JSON lines: one object per line.

A block of lines is parsed in one call of the standard library, each line wrapped in an array of its own,

    [[line], [line], …]

so that the content of a line cannot affect its neighbours. If the result is not of the form
[[{…}], [{…}], …] with one array per line, the block is parsed again line by line to find the bad lines.
Arrow's JSON reader is faster, but a line `null` crashes the process (pyarrow 26).

The columns and their types are those of the first block: a missing value is null, and a column that first
appears later is an error rather than silently dropped.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.types import is_floating, is_integer

from rbegir.errors import InputError
from rbegir.read.source import (
    EMPTY,
    NOT_UTF8,
    Block,
    ByteStream,
    FileRequest,
    Source,
    line_blocks,
    not_whole,
)

NOT_JSON = "not a JSON object"
WRONG_TYPE = "wrong type of value"

Row = dict[str, Any]


class JsonLinesSource(Source):
    """One file of JSON objects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ByteStream(path) as stream:
            lines = next((found for block in line_blocks(stream, path) if (found := _lines(block))), None)
        if lines is None:
            raise InputError(f"{path} is empty", hint=EMPTY)
        rows = [row for row in _parse([*lines.values()]) if row is not None]
        if not rows:
            raise InputError(
                f"{path} holds no JSON object in its first lines", hint="one object per line is expected"
            )
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        for name in self.columns:
            if any("\ud800" <= character <= "\udfff" for character in name):  # see _lines
                raise InputError(f"{path} has a column whose name is {NOT_UTF8}: {name!r}")
        self._types = {name: _infer([row.get(name) for row in rows]) for name in self.columns}
        # columns with a text among the first values: as ids, all of their values are texts
        self._texts = {name for row in rows for name, value in row.items() if isinstance(value, str)}

    def blocks(self, asked: FileRequest) -> Iterator[Block]:
        # types that all values fit: numbers become float64, since 1 may be followed by 0.5
        numbers = {name for name, kind in self._types.items() if is_integer(kind) or is_floating(kind)}
        types = {name: pa.float64() if name in numbers else pa.string() for name in asked.names}
        others = self.columns if asked.others is None else asked.others
        types |= {name: self._types[name] for name in others if name not in types}
        if asked.ids is not None:
            name, kind = asked.ids
            types[name] = pa.string() if kind == "string" or name in self._texts else types[name]
        with ByteStream(self.path) as stream:
            start = 0
            for block in line_blocks(stream, self.path):
                batch, kept = self._convert(_lines(block, start), types, asked)
                yield Block(batch, np.array(kept, np.int64), stream.done)
                start += block.count(b"\n")

    def _convert(
        self, lines: dict[int, str], types: dict[str, pa.DataType], asked: FileRequest
    ) -> tuple[pa.RecordBatch, list[int]]:
        """The good objects as columns, and the numbers of their lines."""
        rows: list[Row] = []
        kept: list[int] = []
        for number, row in zip(lines, _parse([*lines.values()]), strict=True):
            if row is None:
                asked.malformed(number, NOT_JSON)
            elif asked.others is None and not row.keys() <= types.keys():
                late = next(name for name in row if name not in types)
                raise InputError(
                    f"{self.path}: the column {late!r} first appears at {self.place(number)}, "
                    "too late to be read",
                    hint="give it in the first rows too (null where there is none), or use Parquet",
                )
            else:
                rows.append(row)
                kept.append(number)
        columns, wrong = {}, dict[int, str]()
        for name, kind in types.items():
            values = [row.get(name) for row in rows]
            if asked.ids is not None and name == asked.ids[0]:
                values = self._ids(values, kind)
            columns[name], refused = _column(values, kind)
            wrong = refused | wrong
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if wrong:
            for i in sorted(wrong):
                asked.malformed(kept[i], wrong[i])
            good = [i for i in range(len(rows)) if i not in wrong]
            batch, kept = batch.take(pa.array(good, pa.int64())), [kept[i] for i in good]
        return batch, kept

    def _ids(self, values: list[Any], kind: pa.DataType) -> list[Any]:
        """Ids of one type: whole numbers become texts; where numbers are expected, a text is an error."""
        if pa.types.is_string(kind):
            return [str(value) if type(value) is int else value for value in values]
        text = next((value for value in values if isinstance(value, str)), None)
        if text is not None and is_integer(kind):
            raise not_whole(self.path, repr(text))
        return values


def _lines(block: bytes, start: int = 0) -> dict[int, str]:
    """The non-blank lines by number. Invalid UTF-8 becomes lone surrogates, which Arrow refuses."""
    lines = block.decode("utf-8", errors="surrogateescape").split("\n")
    return {i: line for i, line in enumerate(lines, start) if line and not line.isspace()}


def _parse(lines: list[str]) -> Sequence[Row | None]:
    """The object of each line; None for a line that holds no object."""
    with suppress(ValueError, RecursionError):
        found = json.loads("[[" + "],[".join(lines) + "]]") if lines else []
        if len(found) == len(lines) and all(len(items) == 1 and type(items[0]) is dict for items in found):
            return [items[0] for items in found]
    return [_parse_one(line) for line in lines]


def _parse_one(line: str) -> Row | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _infer(values: list[Any]) -> pa.DataType:
    """The type of a column's values: of the first ones if they differ, string if all are null."""
    present = [value for value in values if value is not None]
    while present:
        try:
            return pa.array(present).type
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            present = present[: len(present) // 2]
    return pa.string()


def _column(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Values as an array of a type, and the reasons for refused positions, which are null in the array."""
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
