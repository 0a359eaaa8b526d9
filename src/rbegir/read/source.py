"""From a path to a stream of blocks: which format, is it there, can it be read.

The suffix decides: .parquet (.pq), .csv, .tsv, .jsonl (.ndjson) and .txt, the text formats also with .gz
behind. Contents are not sniffed: a guess that is right nine times in ten is worse than a clear error.

A format is a `Source`: its columns, and `blocks`, which streams Arrow RecordBatches of the wanted columns and
tells `malformed` about rows that are no rows (a lone field, a line that is not JSON). Rows are numbered from
0 in file order, malformed ones included and blank lines not, so that `place` can say where a row is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.errors import CorruptError, FileError, InputError

BLOCK_BYTES = 1 << 22  # of the text formats, after decompression
MAX_ROW_BYTES = 1 << 26  # a longer line is a damaged or foreign file
NOT_UTF8 = "invalid UTF-8"
EMPTY = "name a file that holds rows"  # the way out
FORMATS = (".parquet", ".pq", ".csv", ".tsv", ".jsonl", ".ndjson", ".txt")

Malformed = Callable[[int, str], None]  # (number of the row, reason)
Wanted = Callable[[int, int], npt.NDArray[np.bool_]]  # (start, stop) → which of the rows start … stop − 1


class Block(NamedTuple):
    """Some rows of a file; `done` is the fraction of the file that has been read when they arrive."""

    batch: pa.RecordBatch
    numbers: Callable[[int], int]  # position in the batch → number of the row in the file
    done: float


class Source(Protocol):
    """One file of one format. Opening it has already checked that it is there and what its columns are."""

    path: Path

    columns: list[str]

    @property
    def rows(self) -> int | None:
        """How many the file has, where that is known without reading it."""

    def blocks(
        self,
        names: Sequence[str],
        malformed: Malformed,
        *,
        others: bool = False,
        wanted: Wanted | None = None,
    ) -> Iterator[Block]:
        """Stream the named columns from the beginning of the file, nothing inferred about their text.

        With `others` the remaining columns come too, with the types of the file or inferred ones. Blocks
        without any `wanted` row need not be read.
        """

    def place(self, number: int) -> str:
        """Where a row is, in the words of the format: 'line 17' or 'row 17'. May read the file again."""


def open_source(path: str | Path) -> Source:
    """The source for a path, by its suffix."""
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    suffix = suffixes[-2 if zipped else -1] if len(suffixes) > zipped else ""
    if suffix not in FORMATS or (zipped and suffix in (".parquet", ".pq")):
        hint = "use .parquet, .csv, .tsv, .jsonl or .txt (the text formats also with .gz behind)"
        if suffix == ".npy":
            hint = "an index of vectors is made in Python: rbegir.index.exchange.arrays.import_npy(path, out)"
        raise InputError(f"the name of {path} does not tell its format", hint=hint)
    _check_readable(path)
    with reading(path):
        if suffix in (".parquet", ".pq"):
            from rbegir.read.parquet import ParquetSource

            return ParquetSource(path)
        if suffix in (".csv", ".tsv"):
            from rbegir.read.delimited import DelimitedSource

            return DelimitedSource(path, quoted=suffix == ".csv")
        if suffix == ".txt":
            from rbegir.read.lines import LineSource

            return LineSource(path)
        from rbegir.read.jsonl import JsonLinesSource

        return JsonLinesSource(path)


def _check_readable(path: Path) -> None:
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
    if start in (b"\xff\xfe", b"\xfe\xff"):  # a byte order mark, as some spreadsheets write it
        raise InputError(
            f"{path} is UTF-16, expected UTF-8",
            hint="convert it: iconv -f utf-16 -t utf-8",
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what Arrow and the system raise while reading a file into our errors, in one line."""
    try:
        yield
    except OSError as error:  # truncated or damaged gzip and Parquet, I/O errors
        reason = str(error).splitlines()[0].strip().rstrip(".")
        raise CorruptError(
            f"{path} is damaged or cut short: {reason}", hint="copy or write the file again"
        ) from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].strip().rstrip(".")
        if "straddling object" in reason:
            raise InputError(f"{path} has a row longer than {BLOCK_BYTES >> 20} MB") from None
        raise InputError(f"{path} cannot be parsed: {reason}") from None


def require_columns(source: Source, wanted: Sequence[tuple[str, str]]) -> None:
    """Refuse a file that lacks one of the (role, column name) pairs, or has it twice."""
    found = source.columns
    for role, name in wanted:
        if name not in found:
            listed = ", ".join(repr(c) for c in found[:12]) + (" …" if len(found) > 12 else "")
            hint = f"name the right one with --{role}-column ({role}_column= in Python)"
            if len(found) == 1 and any(mark in found[0] for mark in ";,|\t"):
                hint = "that looks like several: a .csv has commas between its columns, a .tsv tabs"
            raise InputError(f"{source.path} has no column {name!r}; its columns are {listed}", hint=hint)
        if found.count(name) > 1:
            raise InputError(f"{source.path} has {found.count(name)} columns named {name!r}, expected one")


class ByteStream:
    """Bytes of a file, decompressed if its name ends in .gz; `done` is the fraction of it read so far."""

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
    """Whole lines, about BLOCK_BYTES of them at a time; a byte order mark at the start is dropped."""
    carry = b""
    first = True
    while chunk := stream.file.read(BLOCK_BYTES):
        if first:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
            first = False
        end = chunk.rfind(b"\n") + 1
        if end:
            yield carry + chunk[:end]
            carry = chunk[end:]
        else:
            carry += chunk
        if len(carry) > MAX_ROW_BYTES:
            raise InputError(f"{path} has a line longer than {MAX_ROW_BYTES >> 20} MB")
    if carry:
        yield carry
