"""One consistent state of an index, open for reading: a manifest and the mapped files that it names.

A snapshot never changes, and any number of threads may use it. Its holder keeps reading the same keywords
whatever writers do: files that a newer manifest does not name are unlinked, but mapped files stay readable.
Opening takes a few system calls per segment, and no work per keyword.

A *position* in a snapshot counts the keywords of all its segments, one segment after the other, deleted ones
included. −1 stands for no keyword.

*Deletes.* Which positions of which segments are deleted is stored in immutable files beside the segments. A
change writes one file, with one section for each segment that it touched. The section has the segment's name
and holds all its deleted positions so far: as a list (uint32, ascending) while they are few, as bits when a
list would be longer. For each segment the manifest names the file and how many positions are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import masks
from rbegir.base.arguments import type_named
from rbegir.base.disk import explained, refuse_link
from rbegir.base.progress import Report
from rbegir.codes.planes import Codes
from rbegir.encode.encoder import verify_encoder
from rbegir.errors import CorruptError, FileError, MismatchError
from rbegir.index.columns import Int64s, int64_array, int64_numpy
from rbegir.index.filter import Filter
from rbegir.index.format import File, FileKind, FileWriter, Stamp
from rbegir.index.manifest import MODEL, NAME, Manifest, read_manifest
from rbegir.index.segment import Entry, LiveRows, Segment, read_column
from rbegir.search.backend import Partition
from rbegir.search.items import ItemOrder

BATCH_BYTES = 8 << 20  # of texts and attributes in an exported batch, and one more keyword


class LiveSegment:
    """A segment and which of its keywords are deleted in one state of the index."""

    def __init__(
        self,
        segment: Segment,
        entry: Entry,
        deletes: File | None,
        unwritten: masks.Mask | None = None,
        live: masks.Mask | None = None,
        start: int = 0,
    ) -> None:
        self.segment = segment
        self.entry = entry
        self.start = start  # the position of its first keyword in the whole index
        self.unwritten = unwritten  # all deleted positions, if some of them are not on disk yet
        self._deletes = deletes
        self._live = live if live is None else masks.freeze(live)

    @property
    def live(self) -> masks.Mask | None:
        """The positions that are not deleted, or None if none is deleted. Read on first use."""
        if self.entry.deleted and self._live is None:
            self._live = masks.freeze(masks.complement(self.dead(), self.entry.count))
        return self._live

    def dead(self) -> masks.Mask:
        """The deleted positions; a new array unless some are `unwritten`."""
        if self.unwritten is not None:
            return self.unwritten
        if self._deletes is None:
            return masks.empty(self.entry.count)
        return read_deletes(self._deletes, self.entry.file, self.entry.count, self.entry.deleted)

    def without(self, positions: Int64s) -> LiveSegment:
        """The segment with more deleted positions."""
        dead = self.dead() if self.unwritten is None else self.unwritten.copy()
        masks.add(dead, positions)
        entry = replace(self.entry, deleted=masks.size(dead))
        return LiveSegment(self.segment, entry, None, dead, start=self.start)

    def rows(self) -> LiveRows:
        return LiveRows(self.segment, self.live)


class Snapshot:
    """The segments of one state, ordered by row."""

    gathered = False  # whether the codes are copies in memory; see tenant.py

    def __init__(self, directory: Path, manifest: Manifest, before: Snapshot | None = None) -> None:
        """Open the files of a manifest; those that `before` has open are shared with it."""
        self.manifest = manifest
        opened, opened_deletes = {}, {}
        if before is not None:
            opened = {(one.entry.file, one.entry.stamp): one.segment for one in before.segments}
            opened_deletes = {(name, file.stamp): file for name, file in before.deletes.items()}
        self.deletes: dict[str, File] = {}
        expected = {**manifest.columns, "text": "string"}
        self.segments: list[LiveSegment] = []
        for entry in manifest.segments:
            segment = opened.get((entry.file, entry.stamp))
            if segment is None:
                segment = Segment(directory / entry.file, manifest.shape, entry.stamp)
            segment.check_span(entry)
            for name, dtype in segment.types.items():
                if str(dtype) != expected.get(name):
                    raise CorruptError(f"{segment.path} is damaged: column {name!r} is not in the manifest")
            if segment.tenant != manifest.tenant:
                raise CorruptError(f"{segment.path} is damaged: its tenants are not those of the manifest")
            if segment.id_type != manifest.id_type:
                raise CorruptError(f"{segment.path} is damaged: its ids are not {manifest.id_type}")
            deletes = entry.deletes
            if deletes is not None and deletes not in self.deletes:
                stamp = manifest.deletes[deletes]
                shared = opened_deletes.get((deletes, stamp))
                self.deletes[deletes] = shared or File(directory / deletes, FileKind.DELETES, stamp)
            start = self.segments[-1].start + self.segments[-1].entry.count if self.segments else 0
            self.segments.append(LiveSegment(segment, entry, self.deletes.get(deletes or ""), start=start))
        self.files = [*self.deletes.values(), *(one.segment.file for one in self.segments)]
        self.tenants: dict[Any, tuple[dict[Segment, Any], Any]] = {}  # the recent ones; see tenant.py
        self.items: dict[str, ItemOrder] = {}  # the keywords by item; see maxsim.py
        self.lent: Mapping[str, str] = {}  # columns that are null here; see generations.py
        self.accelerated = False  # whether a GPU scans the codes
        if before is not None:
            self.lent, self.accelerated = before.lent, before.accelerated
            here = {one.segment for one in self.segments}
            for name, (parts, _) in [*before.tenants.items()]:
                self.tenants[name] = {one: part for one, part in parts.items() if one in here}, None

    @classmethod
    def open(cls, directory: Path, before: Snapshot | None = None) -> Snapshot:
        """The current state of a directory.

        Between reading the manifest and opening its files, a writer may replace the manifest and remove
        files, or the whole index may be replaced; then the newer manifest is read. If a file is missing or
        damaged and the manifest has not changed, the file is lost.
        """
        manifest = read_manifest(directory)
        while True:
            try:
                return cls(directory, manifest, before)
            except (FileNotFoundError, BlockingIOError, CorruptError) as error:  # see `truncate_unused`
                older, manifest = manifest, read_manifest(directory)
                if manifest != older:
                    continue
                if isinstance(error, CorruptError):
                    raise
                raise CorruptError(
                    f"{error.filename} is missing, but the manifest names it",
                    hint="restore the file from a copy",
                ) from error
            except OSError as error:
                with explained("read", Path(str(error.filename or directory))):
                    raise

    @property
    def keywords(self) -> int:
        return sum(one.entry.live for one in self.segments)

    @property
    def columns(self) -> dict[str, str]:
        """The attributes and their types."""
        return {**self.lent, **self.manifest.columns}

    def types(self) -> dict[str, pa.DataType]:
        """The columns that a filter may name."""
        id_type = pa.string() if self.manifest.id_type == "string" else pa.int64()
        attributes = {name: type_named(dtype) for name, dtype in self.columns.items()}
        return {"id": id_type, "text": pa.string(), **attributes}

    @cached_property
    def starts(self) -> Int64s:
        """The position of the first keyword of each segment, and how many keywords there are."""
        return np.cumsum([0, *(one.entry.count for one in self.segments)], dtype=np.int64)

    def by_segment(self, positions: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
        """For each segment that holds some of the positions: its number, which of them it holds, and where it
        holds those. Negative positions are left out."""
        numbers = np.searchsorted(self.starts, positions, "right") - 1
        if len(self.segments) < 1 << 15:
            numbers = numbers.astype(np.int16)  # which NumPy sorts in linear time
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(self.starts)))
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            which = order[bounds[number] : bounds[number + 1]]
            yield number, which, positions[which] - self.starts[number]

    def find(self, ids: pa.Array) -> Int64s:
        """The position of each id, or −1. An id has at most one live keyword."""
        known = self.manifest.id_type
        if len(ids) and known is not None and str(ids.type) != known:
            raise MismatchError(f"ids are {ids.type}, the ids of this index are {known}")
        positions, starts = np.full(len(ids), -1, np.int64), self.starts
        todo = np.arange(len(ids))
        for number in range(len(self.segments) - 1, -1, -1):
            if not todo.size:
                break
            found = self.segments[number].segment.find(ids.take(int64_array(todo)))
            here = found >= 0
            if not here.any():
                continue  # the mask of a large segment takes megabytes
            live = self.segments[number].live
            if live is not None:
                here[here] = masks.contains(live, found[here])
            positions[todo[here]] = starts[number] + found[here]
            todo = todo[~here]
        self.check_mapped()
        return positions

    def candidates(
        self, passing: Sequence[masks.Mask | None] | None = None
    ) -> tuple[Snapshot, list[Partition]]:
        """The segments with candidates as a snapshot, and their partitions, whose positions are its own.

        `passing` is what passes a filter in each segment.
        """
        segments: list[LiveSegment] = []
        partitions: list[Partition] = []
        for one, passes in zip(self.segments, passing or repeat(None), strict=False):
            mask = masks.both(one.live, passes)
            if mask is None or np.any(mask):
                segments.append(one)
                partitions.append(Partition(one.segment.packed(), one.entry.count, mask))
        searched = copy(self)
        vars(searched).pop("starts", None)
        searched.segments = segments
        return searched, partitions

    def named(self, allow: pa.Array | None, deny: pa.Array | None) -> list[masks.Mask | None]:
        """The positions of each segment that lists of ids leave, including deleted ones; None: all."""
        counts = [one.entry.count for one in self.segments]
        found: list[masks.Mask | None] = [None] * len(counts)
        if allow is not None:
            found = [masks.empty(count) for count in counts]
            for number, _, at in self.by_segment(self.find(allow)):
                found[number] = masks.from_positions(at, counts[number])
        if deny is not None:
            for number, _, at in self.by_segment(self.find(deny)):
                others = masks.complement(masks.from_positions(at, counts[number]), counts[number])
                found[number] = masks.both(found[number], others)
        return found

    def original(self, positions: Int64s) -> Int64s:
        """The positions in the whole index, if this snapshot has only some of its segments."""
        return self._gathered(positions, np.int64, lambda one, at: one.start + at, -1)

    def last_positions(self, rows: Int64s) -> Int64s:
        """The position of the last keyword up to each row, or −1."""
        last, rows = np.full(len(rows), -1), np.clip(rows, -1, 2**62)
        for one in self.segments:
            last += one.segment.up_to(rows)
        return last

    def rows(self, positions: Int64s) -> Int64s:
        """The rows of keywords, all of which must exist."""
        return self._gathered(positions, np.int64, lambda one, at: one.segment.rows(at))

    def ids(self, positions: Int64s) -> npt.NDArray[Any]:
        """The ids of keywords, all of which must exist: int64, or str objects."""
        if self.manifest.id_type == "string":
            return self.column("id", positions)
        return self._gathered(positions, np.int64, lambda one, at: int64_numpy(one.segment.ids(at)))

    def codes(self, positions: Int64s) -> Codes:
        """The codes of keywords, all of which must exist."""
        n, planes = self.manifest.shape
        found = np.zeros((planes, positions.size, n // 64), np.uint64)
        for number, which, at in self.by_segment(positions):
            found[:, which] = self.segments[number].segment.codes(at).planes
        self.check_mapped()
        return Codes(found, n)

    def column(self, name: str, positions: Int64s) -> npt.NDArray[Any]:
        """A column as Python objects; None where `array` has a null."""
        dtype = self.types()[name]
        return self._gathered(
            positions, object, lambda one, at: _objects(read_column(one.segment, name, dtype, at)), None
        )

    def records(self, ids: pa.Array) -> list[dict[str, Any] | None]:
        """The keywords with these ids: id, text and attributes; None for an unknown id."""
        positions = self.find(ids)
        columns = {name: self.column(name, positions) for name in ("text", *self.columns)}
        return [
            None if position < 0 else {"id": given, **{name: values[i] for name, values in columns.items()}}
            for i, (given, position) in enumerate(zip(ids.to_pylist(), positions, strict=True))
        ]

    def array(self, name: str, positions: Int64s) -> pa.Array:
        """A column, or the ids; null for keywords that do not exist and where a segment lacks the column."""
        dtype = self.types()[name]
        parts, size = [pa.nulls(1, dtype)], 1
        order = np.zeros(positions.size, np.int64)  # the null
        for number, which, at in self.by_segment(positions):
            parts.append(read_column(self.segments[number].segment, name, dtype, at))
            order[which] = np.arange(size, size + which.size)
            size += which.size
        self.check_mapped()
        return pa.concat_arrays(parts).take(int64_array(order))

    def sizes(self, names: Sequence[str], positions: Int64s) -> Int64s:
        """The bytes of these columns for each keyword."""
        return self._gathered(positions, np.int64, lambda one, at: one.segment.sizes(names, at))

    def _gathered(
        self,
        positions: Int64s,
        dtype: Any,
        read: Callable[[LiveSegment, Int64s], npt.NDArray[Any]],
        nothing: Any = 0,
    ) -> npt.NDArray[Any]:
        """What `read` gives for keywords of each segment, in the order of the positions; `nothing` for −1."""
        found = np.full(positions.size, nothing, dtype)
        for number, which, at in self.by_segment(positions):
            found[which] = read(self.segments[number], at)
        self.check_mapped()
        return found

    def check_mapped(self) -> None:
        """Raise if a page read from this state was missing. Whatever reads without the methods above, such as
        a scan of codes, calls this before it returns what it read."""
        for file in self.files:
            file.check_mapped()

    def passing(self, where: Any) -> Iterator[LiveRows]:
        """The live keywords of each segment, or those that pass a filter (text or expression)."""
        filter_ = None if where is None else Filter(where, self.types())
        for one in self.segments:
            passing = None if filter_ is None else filter_.passing(one.segment)
            yield LiveRows(one.segment, masks.both(one.live, passing))

    def count(self, where: Any) -> int:
        """How many live keywords pass a filter."""
        found = sum(rows.count for rows in self.passing(where))
        self.check_mapped()
        return found

    def select(self, where: Any) -> Int64s:
        """The positions of the live keywords that pass a filter, ascending."""
        found = zip(self.starts, self.passing(where), strict=False)
        spans = [start + span for start, rows in found for span in rows.spans()]
        return np.concatenate([np.zeros(0, np.int64), *spans])

    def spans(self, rows: int, where: Any = None, after: int = -1) -> Iterator[tuple[Segment, Int64s]]:
        """The positions of the live keywords behind the row `after` that pass, ordered by row, at most `rows`
        at a time."""
        for one, passing in zip(self.segments, self.passing(where), strict=True):
            (first,) = one.segment.up_to(np.array([after])).tolist()
            for span in passing.spans(first):
                for start in range(0, span.size, rows):
                    yield one.segment, span[start : start + rows]

    def batches(self, rows: int, where: Any = None, after: int | None = None) -> Iterator[pa.RecordBatch]:
        """The live keywords that pass as batches of id, text and attributes, each of at most `rows` keywords
        and about BATCH_BYTES; the first may be empty. With `after`, only keywords behind that row, with a
        last column `row`."""
        types = self.types()
        schema = pa.schema([*types.items(), *([] if after is None else [("row", pa.int64())])])
        empty = True
        for segment, span in self.spans(rows, where, -1 if after is None else after):
            ends = np.cumsum(segment.sizes(types, span))
            for positions in np.split(span, np.flatnonzero(np.diff(ends // BATCH_BYTES)) + 1):
                columns = [read_column(segment, name, dtype, positions) for name, dtype in types.items()]
                columns += [] if after is None else [pa.array(segment.rows(positions))]
                batch = pa.record_batch(columns, schema=schema)
                segment.file.check_mapped()
                yield batch
                empty = False
        if empty:
            yield pa.RecordBatch.from_pylist([], schema)

    def damage(self, report: Report = lambda done, total: None) -> Iterator[CorruptError]:
        """All damage in the files of this state; `report` is called with (keywords checked, all)."""
        for file in self.deletes.values():
            yield from file.damage()
        done, total = 0, sum(one.entry.count for one in self.segments)
        for one in self.segments:
            report(done, total)
            done += one.entry.count
            yield from one.segment.damage()
            try:
                one.dead()
            except CorruptError as error:
                yield error


def damage(directory: Path, report: Report = lambda done, total: None) -> Iterator[FileError]:
    """All damage in an index: every byte is compared with its checksum, file by file.

    Damage in one file does not hide damage in another. Raises if the manifest cannot be read, because then
    it is not known which files to check.
    """
    manifest = read_manifest(directory)
    yield from File(directory / NAME, FileKind.MANIFEST).damage()
    if manifest.has_model:
        try:
            verify_encoder(refuse_link(directory / MODEL))
        except FileError as error:
            yield error
    try:
        whole = Snapshot.open(directory)
    except FileError:
        yield from _damage_by_segment(directory, manifest)
    else:
        yield from whole.damage(report)


def _damage_by_segment(directory: Path, manifest: Manifest) -> Iterator[FileError]:
    """The damage of a state that cannot be opened as a whole: each segment is opened alone."""
    for entry in manifest.segments:
        try:
            alone = Snapshot(directory, replace(manifest, segments=(entry,)))
        except FileError as error:
            yield error
        except FileNotFoundError as error:
            yield CorruptError(f"{error.filename} is missing, but the manifest names it")
        else:
            yield from alone.damage()


def write_deletes(path: Path, dead: Mapping[str, tuple[masks.Mask, int]]) -> Stamp:
    """Write the deleted positions (mask, length of the segment) by segment name; durable on return."""
    with FileWriter(path, FileKind.DELETES) as writer:
        for name, (mask, count) in dead.items():
            positions = masks.to_positions(mask, count)
            as_list = 4 * positions.size < 8 * mask.size
            writer.section(name, positions.astype("<u4") if as_list else mask.astype("<u8", copy=False))
        return writer.finish({"segments": sorted(dead)})


def read_deletes(file: File, name: str, count: int, deleted: int) -> masks.Mask:
    """The deleted positions of one segment of `count` keywords; there must be `deleted` of them."""
    section = file.section(name)
    if section.bytes == 4 * deleted and section.bytes < 8 * -(-count // 64):
        positions = section.view("<u4", deleted).astype(np.int64)
        if positions.size and int(positions.max()) >= count:
            raise section.corrupt("points outside its segment")
        mask = masks.from_positions(positions, count)
    else:
        mask = section.view("<u8", -(-count // 64)).astype(np.uint64)
        if masks.to_positions(mask, 64 * mask.size)[-1:].max(initial=-1) >= count:
            raise section.corrupt("points outside its segment")
    if masks.size(mask) != deleted:
        raise section.corrupt(f"holds {masks.size(mask)} positions, the manifest says {deleted}")
    return mask


def _objects(array: pa.Array) -> npt.NDArray[Any]:
    """An Arrow array as Python objects; the extra None keeps NumPy from choosing another type."""
    return np.array([*array.to_pylist(), None], object)[:-1]
