"""One consistent state of an index, open for reading.

A snapshot is a manifest and the mapped files that it names. It never changes and any number of threads may
use it; whoever holds it keeps reading the same keywords, whatever writers do meanwhile: files that are no
longer named are unlinked, but what is mapped stays readable. Opening costs a few system calls a segment, not
a keyword.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import masks
from rbegir.base.arguments import type_named
from rbegir.base.disk import explained
from rbegir.codes.planes import Codes
from rbegir.errors import CorruptError, MismatchError
from rbegir.index.columns import int64_array, int64_numpy
from rbegir.index.deletes import read_deletes
from rbegir.index.filter import Filter
from rbegir.index.format import File, Kind
from rbegir.index.manifest import Entry, Manifest, read_manifest
from rbegir.index.segment import Positions, Segment, Source
from rbegir.search.backend import Partition


@dataclass(frozen=True, eq=False)
class Place:
    """Where keywords are: the part and the position in it, −1 for a keyword that is not there."""

    part: npt.NDArray[np.int64]
    position: Positions

    @cached_property
    def by_part(self) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """The parts that hold any of the keywords, each with the indices of those."""
        order = np.argsort(self.part, kind="stable")
        numbers, starts = np.unique(self.part[order], return_index=True)
        groups = np.split(order, starts[1:]) if order.size else []
        return [(int(number), group) for number, group in zip(numbers, groups, strict=True) if number >= 0]


class Part:
    """A segment and what is deleted of it in one state of the index."""

    def __init__(self, segment: Segment, entry: Entry, deletes: File | None) -> None:
        self.segment = segment
        self.entry = entry
        self._deletes = deletes
        self._live: masks.Mask | None = None

    @property
    def live(self) -> masks.Mask | None:
        """The positions that are not deleted; None when none is. Read at the first use."""
        if self._deletes is not None and self._live is None:
            self._live = masks.complement(self.dead(), self.entry.count)
            masks.freeze(self._live)
        return self._live

    def dead(self) -> masks.Mask:
        """The deleted positions."""
        if self._deletes is None:
            return masks.empty(self.entry.count)
        return read_deletes(self._deletes, self.entry.file, self.entry.count, self.entry.deleted)

    def source(self) -> Source:
        return Source(self.segment, self.live)


class Snapshot:
    """The parts of one state, in the order of rows."""

    def __init__(self, directory: Path, manifest: Manifest, before: Snapshot | None = None) -> None:
        """Open the files of a manifest; segments that are already open in `before` are shared with it."""
        self.manifest = manifest
        opened = {} if before is None else {(p.entry.file, p.entry.stamp): p.segment for p in before.parts}
        deletes: dict[str, File] = {}
        expected = {**manifest.columns, "text": "string"}
        self.parts: list[Part] = []
        for entry in manifest.segments:
            segment = opened.get((entry.file, entry.stamp))
            if segment is None:
                segment = Segment(directory / entry.file, manifest.shape, entry.stamp)
            if (segment.count, segment.first_row, segment.last_row) != entry.span:
                raise CorruptError(
                    f"{segment.path} is damaged: it is not the segment that the manifest describes"
                )
            for name, dtype in segment.types.items():
                if str(dtype) != expected.get(name):
                    raise CorruptError(f"{segment.path} is damaged: column {name!r} is not in the manifest")
            if segment.id_type != manifest.id_type:
                raise CorruptError(f"{segment.path} is damaged: its ids are not {manifest.id_type}")
            if entry.deletes is not None and entry.deletes not in deletes:
                path = directory / entry.deletes
                deletes[entry.deletes] = File(path, Kind.DELETES, manifest.deletes[entry.deletes])
            self.parts.append(Part(segment, entry, deletes.get(entry.deletes or "")))
        self.deletes = deletes

    @classmethod
    def open(cls, directory: Path, before: Snapshot | None = None) -> Snapshot:
        """The current state of a directory.

        A writer may replace the manifest and remove files between our two steps; then there is a newer
        manifest to read. If a file is missing and the manifest is still the same, the file is lost.
        """
        manifest = read_manifest(directory)
        while True:
            try:
                return cls(directory, manifest, before)
            except FileNotFoundError as error:
                newer = read_manifest(directory)
                if newer.generation == manifest.generation:
                    raise CorruptError(
                        f"{error.filename} is missing, but the manifest names it",
                        hint="restore the file from a copy",
                    ) from error
                manifest = newer
            except OSError as error:
                with explained("read", Path(str(error.filename or directory))):
                    raise

    @property
    def keywords(self) -> int:
        return sum(part.entry.live for part in self.parts)

    def types(self) -> dict[str, pa.DataType]:
        """The columns a filter may name."""
        id_type = pa.string() if self.manifest.id_type == "string" else pa.int64()
        attributes = {name: type_named(dtype) for name, dtype in self.manifest.columns.items()}
        return {"id": id_type, "text": pa.string(), **attributes}

    def find(self, ids: pa.Array) -> Place:
        """Where each id lives now. An id has at most one live keyword."""
        known = self.manifest.id_type
        if len(ids) and known is not None and str(ids.type) != known:
            raise MismatchError(f"ids are {ids.type}, the ids of this index are {known}")
        part = np.full(len(ids), -1, np.int64)
        position = np.full(len(ids), -1, np.int64)
        todo = np.arange(len(ids))
        for number in range(len(self.parts) - 1, -1, -1):
            if not todo.size:
                break
            found = self.parts[number].segment.find(ids.take(int64_array(todo)))
            here = found >= 0
            live = self.parts[number].live
            if live is not None:
                here[here] = masks.contains(live, found[here])
            part[todo[here]], position[todo[here]] = number, found[here]
            todo = todo[~here]
        return Place(part, position)

    def candidates(
        self, where: Filter | None, allow: pa.Array | None, deny: pa.Array | None
    ) -> tuple[list[int], list[Partition]]:
        """The parts that have candidates, and what a backend needs to search them."""
        allowed = None if allow is None else self.find(allow)
        denied = None if deny is None else self.find(deny)
        numbers: list[int] = []
        partitions: list[Partition] = []
        for number, part in enumerate(self.parts):
            count = part.entry.count
            mask = part.live
            if allowed is not None:
                mask = masks.from_positions(allowed.position[allowed.part == number], count)
            if denied is not None and np.any(denied.part == number):
                out = masks.from_positions(denied.position[denied.part == number], count)
                mask = masks.complement(out, count) if mask is None else mask & ~out
            if where is not None and (mask is None or np.any(mask)):
                passing = where.passing(part.segment)
                mask = passing if mask is None else mask & passing
            if mask is None or np.any(mask):
                numbers.append(number)
                partitions.append(Partition(part.segment.packed(), count, mask))
        return numbers, partitions

    def place(self, numbers: Sequence[int], positions: Positions) -> Place:
        """Where the hits of a search over these parts are; positions [...] count through all of them."""
        ends = np.cumsum([self.parts[number].entry.count for number in numbers])
        which = np.searchsorted(ends, positions, "right")
        starts = ends - np.array([self.parts[number].entry.count for number in numbers])
        return Place(np.asarray(numbers, np.int64)[which], positions - starts[which])

    def rows(self, place: Place) -> npt.NDArray[np.int64]:
        """The row numbers of keywords."""
        found = np.zeros(place.part.shape, np.int64)
        for number, where in place.by_part:
            found[where] = self.parts[number].segment.rows(place.position[where])
        return found

    def ids(self, place: Place) -> npt.NDArray[Any]:
        """int64, or str objects."""
        strings = self.manifest.id_type == "string"
        found = np.zeros(place.part.shape, object if strings else np.int64)
        for number, where in place.by_part:
            ids = self.parts[number].segment.ids(place.position[where])
            found[where] = ids.to_pylist() if strings else int64_numpy(ids)
        return found

    def codes(self, place: Place) -> Codes:
        """The codes at these places, none of which may be −1."""
        n, planes = self.manifest.shape
        found = np.zeros((planes, place.part.size, n // 64), np.uint64)
        for number, where in place.by_part:
            found[:, where] = self.parts[number].segment.codes(place.position[where]).planes
        return Codes(found, n)

    def column(self, name: str, place: Place) -> npt.NDArray[Any]:
        """Python objects, None for null and where a segment has no such column."""
        found = np.full(place.part.shape, None, object)
        for number, where in place.by_part:
            segment = self.parts[number].segment
            if name in segment.types:
                found[where] = np.array(
                    [*segment.column(name, place.position[where]).to_pylist(), None], object
                )[:-1]
        return found

    def check_mapped(self) -> None:
        """Raise if anything that was read of this state was not there; ask before handing it on."""
        for file in self.deletes.values():
            file.check_mapped()
        for part in self.parts:
            part.segment.file.check_mapped()

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Every live keyword: id, text and attributes, a batch at a time; an empty one if there is none."""
        types = self.types()
        schema = pa.schema(list(types.items()))
        if not self.keywords:
            yield pa.record_batch([pa.array([], dtype) for dtype in types.values()], schema=schema)
        for part in self.parts:
            segment = part.segment
            for span in part.source().spans():
                for start in range(0, span.size, rows):
                    positions = span[start : start + rows]
                    columns = [
                        segment.column(name, positions)
                        if name in segment.types
                        else pa.nulls(positions.size, dtype)
                        for name, dtype in types.items()
                        if name != "id"
                    ]
                    batch = pa.record_batch([segment.ids(positions), *columns], schema=schema)
                    segment.file.check_mapped()
                    yield batch

    def damage(self) -> Iterator[CorruptError]:
        """Everything that is wrong with the files of this state."""
        for file in self.deletes.values():
            yield from file.damage()
        for part in self.parts:
            yield from part.segment.damage()
            try:
                part.dead()
            except CorruptError as error:
                yield error
