"""Opening a file of any format as a stream of blocks of rows.

The suffix decides the format: .parquet (.pq), .csv, .tsv, .jsonl (.ndjson) or .txt; the text formats may be
followed by .gz. Contents are not inspected: a guess that is right nine times in ten is worse than a clear
error. `-` is standard input, one text per line. Tables and lists in memory are written to a temporary file,
which is removed with its source.

A format is a `Source`: its columns, and `blocks`, which streams Arrow RecordBatches of the columns asked for
and reports malformed rows (a lone field, a line that is not JSON). Rows are numbered from 0 in file order,
counting malformed rows, so that `place` can say where a row is.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import as_table, check_texts
from rbegir.errors import CorruptError, FileError, InputError

BLOCK_BYTES = 1 << 22  # of text formats, after decompression
MAX_ROW_BYTES = 1 << 26  # a longer line means a damaged or foreign file
NOT_UTF8 = "invalid UTF-8"
EMPTY = "name a file that holds rows"  # a hint
FORMATS = (".parquet", ".pq", ".csv", ".tsv", ".jsonl", ".ndjson", ".txt")
VECTOR_FORMATS = (".npy", ".fvecs", ".bvecs")  # `rbegir.read.vectors`

Malformed = Callable[[int, str], None]  # (number of the row, reason)
Wanted = Callable[[int, int], npt.NDArray[np.bool_]]  # (start, stop) → which of the rows start … stop − 1


class FileRequest(NamedTuple):
    """The columns and options with which a file is read."""

    names: Sequence[str]  # columns, whose text is not interpreted
    malformed: Malformed  # called for each malformed row
    others: Sequence[str] | None = ()  # columns read with the file's types or inferred ones; None: all
    ids: tuple[str, str | None] | None = None  # the column of ids among them, and the type asked for
    wanted: Wanted | None = None  # blocks without a wanted row need not be read


class Block(NamedTuple):
    """Some rows of a file; `done` is the fraction of the file read so far."""

    batch: pa.RecordBatch
    numbers: npt.NDArray[np.int64]  # [rows]: the numbers of the rows in the file, ascending
    done: float


class Source(ABC):
    """One file of one format, known to exist, with its columns read."""

    path: Path
    columns: list[str]
    rows: int | None = None  # if it is known without reading the file
    instead: str = ""  # what messages call it, if the caller does not know its path

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.instead or str(self.path)

    @abstractmethod
    def blocks(self, asked: FileRequest) -> Iterator[Block]:
        """Stream the file from its beginning."""

    def place(self, number: int) -> str:
        """Where a row is, for messages: 'line 17' or 'row 17'. May read the file again."""
        return f"line {number + 1:,}"


def open_source(given: Any) -> Source:
    """The source for a path, by its suffix; for `-`; or for a table or list in memory."""
    if isinstance(given, (str, Path)) and str(given) != "-":
        return _open_file(Path(given))
    with ExitStack() as kept:
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="rbegir-")))
        if isinstance(given, (str, Path)):
            path = folder / "stdin.txt"
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            if not path.stat().st_size:
                raise InputError("standard input is empty", hint="pipe one text per line into the command")
        else:
            import pyarrow.parquet as pq

            path = folder / "table.parquet"
            try:
                pq.write_table(_table_of(given), path)
            except pa.ArrowException as error:
                raise InputError(f"the rows do not make a table: {str(error).splitlines()[0]}") from error
        source = _open_file(path)
        source.instead = "standard input" if path.suffix == ".txt" else "the table"
        weakref.finalize(source, kept.pop_all().close)
    return source


def _table_of(given: Any) -> pa.Table:
    """A DataFrame, an Arrow table, a column of texts, or a list of texts, of pairs or of dicts as a table.

    A text that is missing (None, NaN) is null, so it is skipped and counted, as it is in a file.
    """
    column = isinstance(given, (pa.Array, pa.ChunkedArray)) or len(getattr(given, "shape", ())) == 1
    rows = given if isinstance(given, (list, tuple)) else []
    if column or any(isinstance(row, str) for row in rows):
        return pa.table({"text": check_texts(given, missing=True)})
    table = as_table(given)
    if table is not None:
        return table
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    sizes = {len(row) if isinstance(row, (list, tuple)) else 0 for row in rows}
    if sizes in ({2}, {3}):
        columns = zip(*rows, strict=True)
        return pa.table(dict(zip(("query", "keyword", "weight"), map(pa.array, columns), strict=False)))
    kinds = " and ".join(sorted({type(row).__name__ for row in rows}))
    raise InputError(
        "expected a path, a DataFrame, an Arrow table or a list of rows, "
        f"got {type(given).__name__}{f' of {kinds}' if kinds else ''}",
        hint="a list holds texts, (query, keyword) pairs, all or none of them with a weight, or dicts",
    )


def _open_file(path: Path) -> Source:
    """The source for a path, by its suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    suffix = suffixes[-2 if zipped else -1] if len(suffixes) > zipped else ""
    if suffix not in FORMATS or (zipped and suffix in (".parquet", ".pq")):
        hint = (
            "use .parquet, .csv, .tsv, .jsonl or .txt (text formats may be followed by .gz); "
            "in Python a DataFrame will do, too"
        )
        if suffix in VECTOR_FORMATS:
            hint = "an index of vectors: rbegir index build VECTORS --out INDEX"
        raise InputError(f"the suffix of {path} is not that of a known format", hint=hint)
    if check_readable(path) in (b"\xff\xfe", b"\xfe\xff"):  # a byte order mark, as some spreadsheets write it
        raise InputError(f"{path} is UTF-16, expected UTF-8", hint="convert it: iconv -f utf-16 -t utf-8")
    with reading(path):
        if suffix in (".parquet", ".pq"):
            from rbegir.read.parquet import ParquetSource

            return ParquetSource(path)
        if suffix in (".csv", ".tsv"):
            from rbegir.read.delimited import DelimitedSource

            return DelimitedSource(path, quoted=suffix == ".csv")
        if suffix == ".txt":
            return LineSource(path)
        from rbegir.read.jsonl import JsonLinesSource

        return JsonLinesSource(path)


def check_readable(path: Path) -> bytes:
    """Refuse what is no file, cannot be read or is empty; returns the first two bytes."""
    try:
        if path.is_dir():
            raise FileError(f"{path} is a directory, expected a file", hint="name one file inside it")
        with path.open("rb") as file:
            start = file.read(2)
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    if not start:
        raise InputError(f"{path} is empty", hint=EMPTY)
    return start


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of Arrow and of the system while reading a file into errors of this package."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].strip().rstrip(".")
        if isinstance(error, OSError):  # truncated or damaged gzip or Parquet, I/O errors
            raise CorruptError(
                f"{path} is damaged or cut short: {reason}", hint="copy or write the file again"
            ) from None
        if "straddling object" in reason:
            raise InputError(f"{path} has a row longer than {BLOCK_BYTES >> 20} MB") from None
        raise InputError(f"{path} cannot be parsed: {reason}") from None


def not_whole(file: str | Path, found: str) -> InputError:
    return InputError(
        f"{file} has an id that is not a whole number: {found}",
        hint="--id-type string reads all ids as texts (id_type= in Python)",
    )


def require_columns(source: Source, wanted: Sequence[tuple[str, str]]) -> None:
    """Raise if the file lacks one of the (role, column name) pairs, or has it twice."""
    found = source.columns
    for role, name in wanted:
        if name not in found:
            listed = ", ".join(repr(c) for c in found[:12]) + (" …" if len(found) > 12 else "")
            hint = f"name the right one with --{role}-column ({role}_column= in Python)"
            marks = [mark for mark in "\t,;|" if mark in found[0]] if len(found) == 1 else []
            if marks:
                hint = "that looks like several columns: a .csv has commas between them, a .tsv tabs"
                if marks[0] in ";|":
                    hint += f"; in Python, give pandas.read_csv({str(source.path)!r}, sep={marks[0]!r})"
            raise InputError(f"{source.name} has no column {name!r}; its columns are {listed}", hint=hint)
        if found.count(name) > 1:
            raise InputError(
                f"{source.name} has {found.count(name)} columns named {name!r}, expected one",
                hint="rename the others",
            )


def attributes_of(source: Source, taken: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The columns of a file besides those taken: all of them, or the ones asked for, which must exist."""
    others = [name for name in source.columns if name not in taken]
    for name in columns or ():
        if name not in others:
            raise InputError(
                f"{source.name} has no attribute {name!r}", hint=f"--columns: {', '.join(others)}"
            )
    return others if columns is None else [name for name in others if name in columns]


class ByteStream:
    """The bytes of a file, decompressed if its name ends in .gz; `done` is the fraction read so far."""

    def __init__(self, path: Path) -> None:
        self._size = max(path.stat().st_size, 1)
        self._raw = pa.OSFile(str(path), "rb")
        zipped = path.suffix.lower() == ".gz"
        self.file: IO[bytes] = pa.CompressedInputStream(self._raw, "gzip") if zipped else self._raw

    @property
    def done(self) -> float:
        return float(min(self._raw.tell() / self._size, 1.0))

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self._raw.close()


def line_blocks(stream: ByteStream, path: Path) -> Iterator[bytes]:
    """Whole lines in blocks of about BLOCK_BYTES; a byte order mark at the start is dropped."""
    carry, mark = b"", b"\xef\xbb\xbf"
    while chunk := stream.file.read(BLOCK_BYTES):
        chunk, mark = chunk.removeprefix(mark), b""
        end = chunk.rfind(b"\n") + 1
        if end:
            yield carry + chunk[:end]
            carry = b""
        carry += chunk[end:]
        if len(carry) > MAX_ROW_BYTES:
            raise InputError(f"{path} has a line longer than {MAX_ROW_BYTES >> 20} MB")
    if carry:
        yield carry


class LineSource(Source):
    """Plain lines: one text per line in the column `text`. A blank line is an empty text."""

    def __init__(self, path: Path) -> None:
        self.path, self.columns = path, ["text"]

    def blocks(self, asked: FileRequest) -> Iterator[Block]:
        with ByteStream(self.path) as stream:
            start = 0
            for block in line_blocks(stream, self.path):
                text = block.replace(b"\r\n", b"\n").removesuffix(b"\n")
                lines = pc.split_pattern(pa.array([text], pa.binary()), b"\n").flatten()
                batch = pa.RecordBatch.from_arrays([lines], names=["text"])
                yield Block(batch, np.arange(start, start + len(lines)), stream.done)
                start += len(lines)
