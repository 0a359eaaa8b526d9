"""Streams of checked rows: bad rows are left out and counted, or raise an error in strict mode.

A bad row counts for the first reason that applies, in the order in which its columns are checked. Checks run
on whole Arrow arrays; only doubtful rows are examined one by one: an array that is not UTF-8 is halved until
the bad rows are found, and texts without a common letter or digit (punctuation, symbols such as ™ that
normalise to letters, rare scripts) go through the tokeniser.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import MAX_TEXT_BYTES, is_list, stored_bytes
from rbegir.errors import InputError
from rbegir.read.source import NOT_UTF8, Block, FileRequest, Source, Wanted, reading
from rbegir.read.tokenizer import tokenize

MISSING = "missing field or null"
NO_WORD = "no letter or digit"
TOO_LONG = f"a text of more than {MAX_TEXT_BYTES:,} bytes"

# Common letters and digits, each of which makes a word; the tokeniser decides about all others.
_PLAIN = (
    r"[0-9A-Za-z\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{24F}\x{391}-\x{3A1}\x{3A3}-\x{3CE}\x{400}-\x{481}\x{48A}-\x{52F}"
    r"\x{0561}-\x{0587}\x{05D0}-\x{05EA}\x{0620}-\x{063F}\x{0641}-\x{064A}\x{0904}-\x{0939}\x{0E01}-\x{0E30}"
    r"\x{3041}-\x{3096}\x{30A1}-\x{30FA}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{AC00}-\x{D7A3}]"
)
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class Skipped:
    """How many rows were read, and how many were left out, by reason."""

    def __init__(self) -> None:
        self.read = 0
        self.reasons: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.reasons.total()

    def __bool__(self) -> bool:
        return self.total > 0

    def __str__(self) -> str:
        parts = ", ".join(f"{count:,} with {reason}" for reason, count in self.reasons.most_common())
        return f"skipped {self.total:,} of {self.read:,} rows: {parts}" if parts else "skipped no row"

    @property
    def hint(self) -> str:
        """How to find the rows that were left out."""
        other = "; iconv converts a file to UTF-8" if NOT_UTF8 in self.reasons else ""
        return f"--strict (strict=True in Python) stops at the first of them and says where it is{other}"

    def to_dict(self) -> dict[str, int]:
        return dict(self.reasons)


class Checker:
    """The good rows of one block while its columns are checked."""

    def __init__(self, rows: int) -> None:
        self.good = np.ones(rows, dtype=np.bool_)
        self.reasons: Counter[str] = Counter()
        self.first: dict[int, str] = {}  # the first row that each check rejected, and the reason

    def reject(self, bad: npt.NDArray[np.bool_], reason: str) -> None:
        """Mark the rows where `bad` is true, unless they are marked already."""
        bad = bad & self.good
        if bad.any():
            self.reasons[reason] += int(bad.sum())
            self.good &= ~bad
            self.first[int(bad.argmax())] = reason


class Stream(ABC):
    """The good rows of a file as RecordBatches; each iteration reads the file again.

    `skipped` counts the rows of the latest iteration, `progress` is the fraction of the file read by it.
    With strict=True the first bad row raises an InputError that says where it is.
    """

    what = "row"  # the name of a row in errors
    _names: list[str]  # the columns to read
    _others: Sequence[str] | None = ()  # further columns, with their types; None: all
    _ids: tuple[str, str | None] | None = None  # see FileRequest

    def __init__(self, source: Source, *, strict: bool) -> None:
        self.path: Path = source.path
        self.name = source.name  # in messages
        self.strict = strict
        self.skipped = Skipped()
        self.progress = 0.0
        self._source = source

    @abstractmethod
    def _convert(self, batch: pa.RecordBatch, checker: Checker) -> pa.RecordBatch:
        """Convert a file's columns to the schema's, keeping all rows and rejecting bad ones in `checker`."""

    @property
    def rows(self) -> int | None:
        """The number of rows, good or bad, if it is known without reading the file."""
        return self._source.rows

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for _, batch in self.part(None):
            yield batch
        skipped = self.skipped
        if skipped.total == skipped.read:
            raise InputError(
                f"{self.name} holds no usable {self.what}: {skipped}"
                if skipped
                else f"{self.name} holds no {self.what}"
            )

    def part(self, wanted: Wanted | None) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        """The good rows among the wanted ones (None: all), with their numbers, which ascend.

        Only wanted rows are checked and counted. Numbers do not depend on `wanted`.
        """
        skipped = self.skipped = Skipped()
        self.progress = 0.0
        malformed: dict[int, str] = {}  # kept in strict mode only

        def note(number: int, reason: str) -> None:
            if wanted is None or wanted(number, number + 1)[0]:
                skipped.read += 1
                skipped.reasons[reason] += 1
            if self.strict:
                malformed[number] = reason

        with reading(self.path):
            for block in self._source.blocks(FileRequest(self._names, note, self._others, self._ids, wanted)):
                if wanted is not None and block.batch.num_rows:
                    block = _only(block, wanted)
                checker = Checker(block.batch.num_rows)
                batch = self._convert(block.batch, checker)
                if self.strict:
                    self._raise_first(_bad_rows(block, checker, malformed))
                skipped.read += block.batch.num_rows
                skipped.reasons += checker.reasons
                self.progress = block.done
                if checker.reasons:
                    batch = batch.filter(pa.array(checker.good))
                if batch.num_rows:
                    yield block.numbers[checker.good], batch
        self._raise_first(malformed)  # those after the last well-formed row
        self.progress = 1.0

    def _raise_first(self, bad: dict[int, str]) -> None:
        if bad:
            number = min(bad)
            raise InputError(
                f"{self.name}, {self._source.place(number)}: {bad[number]}",
                hint="without --strict such rows are skipped and counted",
            )

    def read_all(self) -> pa.Table:
        """All good rows as one table."""
        return pa.Table.from_batches(list(self))

    def head(self, rows: int) -> pa.Table:
        """The first good rows; the file is read only as far as needed."""
        batches: list[pa.RecordBatch] = []
        missing = rows
        for batch in self:
            batches.append(batch.slice(0, missing))
            missing -= batches[-1].num_rows
            if missing <= 0:
                break
        return pa.Table.from_batches(batches)


def _only(block: Block, wanted: Wanted) -> Block:
    """The wanted rows of a block that has rows."""
    first, last = int(block.numbers[0]), int(block.numbers[-1])
    chosen = np.flatnonzero(wanted(first, last + 1)[block.numbers - first])
    return block._replace(batch=block.batch.take(pa.array(chosen)), numbers=block.numbers[chosen])


def _bad_rows(block: Block, checker: Checker, malformed: dict[int, str]) -> dict[int, str]:
    """The bad rows up to the end of a block, by number; a parser may have reported rows of later blocks."""
    if not block.batch.num_rows:
        return {}
    last = block.numbers[-1]
    bad = {number: reason for number, reason in malformed.items() if number < last}
    return bad | {int(block.numbers[position]): reason for position, reason in checker.first.items()}


def text_column(array: pa.Array, name: str, file: str, checker: Checker) -> pa.StringArray:
    """A column as strings; rejects rows that are null, not UTF-8, or hold nothing to encode."""
    raw = as_binary(array)
    if raw is None:
        raise InputError(f"the column {name!r} of {file} must hold text, got {array.type}")
    if raw.null_count:
        checker.reject(np.asarray(raw.is_null()), MISSING)
    texts = _decode(raw, checker)
    clear = np.asarray(pc.match_substring_regex(texts, _PLAIN).fill_null(False))
    doubtful = np.flatnonzero(~clear & checker.good)
    if len(doubtful):
        empty = np.zeros(len(texts), dtype=np.bool_)
        empty[doubtful] = np.diff(tokenize(texts.take(pa.array(doubtful))).text_offsets) == 0
        checker.reject(empty, NO_WORD)
    return texts


def reject_long(array: pa.Array, checker: Checker) -> None:
    """Reject the rows of texts or lists that an index would refuse to store; other columns pass."""
    texts = array if is_list(array.type) else as_binary(array)
    if texts is not None:
        checker.reject(stored_bytes(texts) > MAX_TEXT_BYTES, TOO_LONG)


def id_texts(array: pa.Array, checker: Checker) -> pa.StringArray:
    """Ids that were read as text; rejects empty ones and those that are not UTF-8."""
    texts = _decode(array, checker)
    checker.reject(np.asarray(pc.equal(texts, "").fill_null(True)), MISSING)
    return texts


def as_binary(array: pa.Array) -> pa.BinaryArray | None:
    """A text column of any Arrow type as binary; None if it holds something else."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.cast(kind.value_type), kind.value_type
    texts = (pa.string(), pa.binary(), pa.null(), pa.string_view(), pa.binary_view())
    if kind in (pa.large_string(), pa.large_binary()):
        array = array.cast(pa.large_binary())
    elif kind not in texts:
        return None
    return array.cast(pa.binary())


def _decode(raw: pa.BinaryArray, checker: Checker) -> pa.StringArray:
    """Binary → string; rows that are not UTF-8 are rejected and become empty."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        bad = np.zeros(len(raw), dtype=np.bool_)
        todo = [(0, len(raw))]
        while todo:
            start, end = todo.pop()
            try:
                raw.slice(start, end - start).cast(pa.string())
            except pa.ArrowInvalid:
                if end - start == 1:
                    bad[start] = True
                else:
                    middle = (start + end) // 2
                    todo += [(start, middle), (middle, end)]
        checker.reject(bad, NOT_UTF8)
        return pc.if_else(pa.array(bad), pa.scalar(b""), raw).cast(pa.string())


def number_column(array: pa.Array, name: str, file: str) -> npt.NDArray[np.float64]:
    """A column as float64, NaN for a missing number; text is parsed, other types are refused."""
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
        return np.asarray(array.cast(pa.float64(), safe=False).fill_null(math.nan))
    raw = as_binary(array)
    if raw is None:
        raise InputError(f"the column {name!r} of {file} must hold numbers, got {array.type}")
    texts = _decode(raw, Checker(len(raw)))  # invalid UTF-8 becomes empty, which is not a number
    texts = pc.utf8_trim_whitespace(texts)
    numeric = pc.match_substring_regex(texts, _NUMBER)
    return np.asarray(pc.if_else(numeric, texts, None).cast(pa.float64()).fill_null(math.nan))
