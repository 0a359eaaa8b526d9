"""One chunk of a bulk build: some rows in, one finished segment out. Runs in many processes at once.

    read the slices ─ check ─ encode ─ write .chunk-<number>.<random> ─ rename to segment-<number>.rbs

The name of a segment is its chunk's number and its rows are known beforehand, so a chunk can be done
anywhere, in any order, twice (after a lost node, by a process that was thought dead) or not at all (its
segment is there from an earlier run): the file that ends up under the name is always the same. That is what
makes every row appear exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rbegir import errors
from rbegir.base import disk
from rbegir.base.arguments import check_attributes, check_ids, check_texts, refuse_repeats
from rbegir.encode.encoder import Encoder, encode_keywords, load_encoder
from rbegir.errors import FileError, InputError, RbegirError
from rbegir.index.creation import keywords_of
from rbegir.index.manifest import MODEL
from rbegir.index.segment import CodeShape, KeywordRows, LiveRows, Segment, write_segment
from rbegir.read.parquet import Reading, Slice, count_usable, read_chunk

TEMPORARY = ".chunk-"


@dataclass(frozen=True)
class Task:
    """A chunk to be done."""

    number: int
    first_row: int
    slices: tuple[Slice, ...]

    @property
    def rows(self) -> int:
        return sum(part.count for part in self.slices)

    @property
    def file(self) -> str:
        return f"segment-{self.number:08d}.rbs"


@dataclass(frozen=True)
class SegmentMaker:
    """Makes chunks in a directory that all processes share; a Ray Data function."""

    directory: str
    shape: CodeShape
    reading: Reading
    encoder: Encoder | None  # None: the model that is stored in the directory

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A task as Ray Data passes it on → its number, or what went wrong."""
        slices = tuple(Slice.from_dict(part) for part in row["slices"])
        task = Task(int(row["number"]), int(row["first_row"]), slices)
        try:
            self.make(task)
        except RbegirError as error:
            return outcome_row(task.number, error)
        return outcome_row(task.number)

    def make(self, task: Task) -> None:
        """Write the segment of a task, unless it is there."""
        directory = Path(self.directory)
        final = directory / task.file
        if is_done(final, task, self.shape):
            return
        if not directory.is_dir():
            raise FileError(
                f"{os.uname().nodename} does not see {directory}",
                hint="build into a directory that every node mounts at the same path",
            )
        rows = self._rows(task)
        temporary = directory / f"{TEMPORARY}{task.number}.{os.urandom(6).hex()}"
        with disk.explained("write to", directory):
            try:
                write_segment(temporary, [LiveRows(rows, None)], self.shape)
                disk.rename(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)

    def _rows(self, task: Task) -> KeywordRows:
        texts, ids, attributes = keywords_of(read_chunk(task.slices, self.reading))
        given = check_texts(texts)
        wanted = None if ids is None else check_ids(ids)
        if wanted is not None:
            refuse_repeats(wanted)
        columns = {"text": given, **check_attributes(attributes, len(given), {})}
        codes = encode_keywords(self.encoder or _stored(self.directory), given)
        return KeywordRows(codes, task.first_row, wanted, columns)


@lru_cache(maxsize=1)
def _stored(directory: str) -> Encoder:
    """The model of a build, opened once per process; with one thread, as every core has its own process."""
    return load_encoder(Path(directory) / MODEL, threads=1)


def is_done(path: Path, task: Task, shape: CodeShape) -> bool:
    """Whether the segment of a task is there, complete."""
    try:
        segment = Segment(path, shape)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if (segment.count, segment.first_row) != (task.rows, task.first_row):
        raise InputError(f"{path} is not the segment that belongs there", hint="remove it and start again")
    return True


def count_row(row: dict[str, Any], reading: Reading) -> dict[str, Any]:
    """Count the usable rows of a row group, as Ray Data passes it on."""
    group = Slice.from_dict(row["slice"]).group
    try:
        count, reasons = count_usable(group, reading)
    except RbegirError as error:
        return {**outcome_row(int(row["number"]), error), "usable": 0, "reasons": [], "counts": []}
    counted = {"usable": count, "reasons": list(reasons), "counts": list(reasons.values())}
    return {**outcome_row(int(row["number"])), **counted}


def outcome_row(number: int, error: RbegirError | None = None) -> dict[str, Any]:
    """How a task ended, as plain values: what travels between processes here is Arrow, not Python objects."""
    kind, message, hint = ("", "", "") if error is None else (type(error).__name__, error.message, error.hint)
    return {"number": number, "kind": kind, "message": message, "hint": hint}


def raise_first(rows: Sequence[dict[str, Any]]) -> None:
    """Raise the error of the earliest row that has one."""
    bad = [row for row in rows if row["kind"]]
    if bad:
        first = min(bad, key=lambda row: int(row["number"]))
        raise getattr(errors, first["kind"])(first["message"], hint=first["hint"])
