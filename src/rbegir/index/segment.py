"""A segment: some keywords in the order of their rows, in one immutable file.

    codes             what the scan reads: the packed layout of `rbegir.codes.layout`, padded to whole groups
    rows, rows.fences int64 rows, ascending; only if they are not first_row, first_row + 1, …
    column.0, 1, …    `id` (only if ids were given; the default id is the row), `text`, attributes
    id.keys/order/…   from an id to its position; only if ids were given
    tenant.keys/…     from a tenant to the positions of its keywords; only if the index has tenants

A keyword is addressed by its position 0 … count − 1 in the segment. Positions never change; deletes are
stored elsewhere (`snapshot.py`). A segment is written from the live rows of other segments or of memory,
chunk by chunk, so that a merge of any size needs little memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir._native._core import LexicalIndex
from rbegir.base import masks
from rbegir.base.arguments import type_named
from rbegir.codes import layout
from rbegir.codes.planes import Codes
from rbegir.encode.reranker import Spelling
from rbegir.errors import CorruptError, VersionError
from rbegir.index.columns import Column, ColumnSpec, Int64s, int64_array, int64_numpy, write_column
from rbegir.index.format import File, FileKind, FileWriter, Stamp, Turn
from rbegir.index.keys import STRIDE, SortedKeys, keys_of, sorted_parts, write_keys

CHUNK = 1 << 16  # rows in memory at a time while a segment is written; a multiple of layout.GROUP
MAX_ROWS = 1 << 24  # per segment: bounds the memory of a compaction, and keeps positions within 32 bits


T = TypeVar("T")


class CodeShape(NamedTuple):
    """The shape that all codes of an index share."""

    n: int
    planes: int


@dataclass
class KeywordRows:
    """Keywords in memory, read by position like those of a `Segment`."""

    packed: Codes
    first_row: int
    given_ids: pa.Array | None  # int64 or string; None: the rows
    columns: dict[str, pa.Array]  # text, if given, and attributes

    @property
    def count(self) -> int:
        return len(self.packed)

    @property
    def has_ids(self) -> bool:
        return self.given_ids is not None

    @property
    def id_type(self) -> str:
        return "int64" if self.given_ids is None else str(self.given_ids.type)

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {name: column.type for name, column in self.columns.items()}

    def rows(self, positions: Int64s) -> Int64s:
        return self.first_row + positions

    def ids(self, positions: Int64s) -> pa.Array:
        if self.given_ids is None:
            return int64_array(self.rows(positions))
        return self.given_ids.take(int64_array(positions))

    def column(self, name: str, positions: Int64s) -> pa.Array:
        return self.columns[name].take(int64_array(positions))

    def codes(self, positions: Int64s) -> Codes:
        return self.packed[positions]


@dataclass(frozen=True)
class LiveRows:
    """The keywords of a table that are not deleted; `live` is None if none is deleted."""

    table: KeywordRows | Segment
    live: masks.Mask | None

    @property
    def count(self) -> int:
        return self.table.count if self.live is None else masks.size(self.live)

    def spans(self, first: int = 0) -> Iterator[Int64s]:
        """The live positions from `first` on, ascending, chunk by chunk."""
        for start in range(first // CHUNK * CHUNK, self.table.count, CHUNK):
            stop = min(start + CHUNK, self.table.count)
            if self.live is None:
                yield np.arange(max(first, start), stop)
            else:
                found = start + masks.to_positions(self.live[start >> 6 : -(-stop >> 6)], stop - start)
                yield found[np.searchsorted(found, first) :]

    def has_values(self, column: str) -> bool:
        """Whether any of the keywords has a value in a column."""
        return column in self.table.types and any(
            self.table.column(column, span).null_count < span.size for span in self.spans()
        )


@dataclass(frozen=True)
class Entry:
    """The entry of one segment in the manifest."""

    file: str
    stamp: Stamp
    count: int
    first_row: int
    last_row: int
    deletes: str | None = None  # the file that holds its deletes
    deleted: int = 0

    @property
    def live(self) -> int:
        return self.count - self.deleted


def write_segment(
    path: Path,
    sources: Sequence[LiveRows],
    shape: CodeShape,
    tenant: str | None = None,
    without: Collection[str] = (),
    turn: Turn = nullcontext,
) -> Entry:
    """Write the live keywords of the sources, whose rows must ascend; durable on return.

    The column `tenant`, which has no nulls, gets a lookup table; the columns in `without` are left out.
    `turn` is that of `FileWriter`.
    """
    count = sum(source.count for source in sources)
    assert 0 < count <= MAX_ROWS
    types: dict[str, pa.DataType] = {}
    for source in sources:
        if source.table.has_ids:
            types = {"id": type_named(source.table.id_type), **types}
        types.update({name: kind for name, kind in source.table.types.items() if name not in without})

    def chunks(read: Callable[[KeywordRows | Segment, Int64s], T]) -> Iterator[T]:
        return (read(source.table, span) for source in sources for span in source.spans() if span.size)

    ends = list(chunks(lambda table, span: table.rows(span[[0, -1]])))
    first_row, last_row = int(ends[0][0]), int(ends[-1][1])
    with FileWriter(path, FileKind.SEGMENT, turn) as writer:
        writer.begin("codes")
        for plane in range(shape.planes):  # the layout stores plane after plane, so each takes one pass
            for codes in _regroup(chunks(lambda table, span: table.codes(span))):
                writer.write(layout.pack(Codes(codes.planes[plane : plane + 1], shape.n)))
        if last_row - first_row + 1 != count:
            rows = np.concatenate(list(chunks(lambda table, span: table.rows(span))))
            writer.section("rows", rows.astype("<i8", copy=False))
            writer.section("rows.fences", rows[::STRIDE].astype("<i8"))
        specs: list[ColumnSpec] = []
        for name, dtype in types.items():

            def values(name: str = name, dtype: pa.DataType = dtype) -> Iterator[pa.Array]:
                return chunks(lambda table, span: read_column(table, name, dtype, span))

            specs.append(write_column(writer, f"column.{len(specs)}", name, dtype, values))
            if name in ("id", tenant):
                section = "id" if name == "id" else "tenant"
                write_keys(writer, section, np.concatenate([keys_of(chunk) for chunk in values()]))
        stamp = writer.finish(
            {
                "n": shape.n,
                "planes": shape.planes,
                "layout": layout.LAYOUT_VERSION,
                "count": count,
                "first_row": first_row,
                "last_row": last_row,
                "columns": [list(spec) for spec in specs],
                **({} if tenant is None else {"tenant": tenant}),
            }
        )
    return Entry(path.name, stamp, count, first_row, last_row)


class Segment:
    """A mapped segment. Opening reads its directory; all other bytes are checked when first used."""

    opener: type[File] = File

    def __init__(self, path: Path, shape: CodeShape, stamp: Stamp | None = None) -> None:
        self.path = path
        self.file = self.opener(path, FileKind.SEGMENT, stamp)
        self.shape = shape
        meta = self.file.meta
        if meta.get("layout") != layout.LAYOUT_VERSION:
            raise VersionError(
                f"{path} holds codes in layout {meta.get('layout')!r}, "
                f"this rbegir reads layout {layout.LAYOUT_VERSION}",
                hint="use the version of rbegir that wrote it, or build the index again",
            )
        if (meta.get("n"), meta.get("planes")) != shape:
            raise self._corrupt(f"expected codes of n = {shape.n} and {shape.planes} planes")
        self.count = self._whole_number("count", 1, MAX_ROWS)
        self.first_row = self._whole_number("first_row", 0, 2**62)
        self.last_row = self._whole_number("last_row", self.first_row + self.count - 1, 2**62)
        self._codes = self.file.section("codes")
        if self._codes.bytes != layout.packed_bytes(self.count, *shape):
            raise self._codes.corrupt(
                f"has {self._codes.bytes} bytes, which does not fit {self.count} keywords"
            )
        self._columns = self._read_columns(meta.get("columns"))
        self._rows: SortedKeys | None = None
        self._row_section = None
        if self.last_row - self.first_row + 1 != self.count:
            self._row_section = self.file.section("rows")
            self._rows = SortedKeys(self._row_section, self.file.section("rows.fences"), self.count, "<i8")
        self.has_ids = "id" in self._columns
        self._keys = SortedKeys.named(self.file, "id", self.count) if self.has_ids else None
        self._order = self.file.section("id.order") if self.has_ids else None
        self.tenant = meta.get("tenant")  # the column that names the tenants; None: there are none
        if not (self.tenant is None or (isinstance(self.tenant, str) and self.tenant in self.types)):
            raise self._corrupt("it lacks the column of the tenants")
        self._tenants = None
        if self.tenant is not None:
            keys = SortedKeys.named(self.file, "tenant", self.count)
            self._tenants = keys, self.file.section("tenant.order")
        self.known_words: tuple[Spelling, LexicalIndex] | None = None
        self._building = threading.Lock()  # held while `known_words` is made
        self.filters: dict[str, masks.Mask] = {}  # the masks of recent filters, by text; see filter.py
        self.masks: WeakValueDictionary[str, masks.Mask] = WeakValueDictionary()  # and those in use elsewhere

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {name: column.type for name, column in self._columns.items() if name != "id"}

    @property
    def id_type(self) -> str:
        return str(self._columns["id"].type) if self.has_ids else "int64"

    @property
    def span(self) -> tuple[int, int, int]:
        return self.count, self.first_row, self.last_row

    def check_span(self, entry: Entry) -> None:
        """Raise unless this is the segment that an entry of the manifest describes."""
        if self.span != (entry.count, entry.first_row, entry.last_row):
            raise self._corrupt("it is not the segment that the manifest describes")

    def packed(self) -> npt.NDArray[np.uint8]:
        """The codes as a backend reads them; the first call checks all of them."""
        return self._codes.view(np.uint8, self._codes.bytes)

    def codes(self, positions: Int64s) -> Codes:
        return layout.unpack(self.packed(), self.count, *self.shape, positions)

    def rows(self, positions: Int64s) -> Int64s:
        if self._row_section is None:
            return self.first_row + positions
        self._row_section.touch(8 * positions, 8 * (positions + 1))
        return self._row_section.unchecked("<i8", self.count)[positions]

    def up_to(self, rows: Int64s) -> Int64s:
        """For each of the rows, the number of keywords up to it."""
        if self._rows is None:
            return np.clip(rows - self.first_row + 1, 0, self.count)
        return self._rows.find(rows)[1]

    def ids(self, positions: Int64s) -> pa.Array:
        """int64 or string ids; the rows if no ids were given."""
        return self._columns["id"].take(positions) if self.has_ids else int64_array(self.rows(positions))

    def column(self, name: str, positions: Int64s) -> pa.Array:
        """A column at these positions; the segment must have it (see `types`)."""
        return self._columns[name].take(positions)

    def sizes(self, names: Iterable[str], positions: Int64s) -> Int64s:
        """The bytes of these columns at each position, of those that the segment has."""
        found = np.zeros(positions.shape, np.int64)
        for name in names:
            if name in self.types:
                found += self._columns[name].sizes(positions)
        return found

    def whole(self, name: str) -> pa.Array:
        """A whole column, or all ids, for filters; validated on the first call."""
        if name == "id" and not self.has_ids:
            return int64_array(self.rows(np.arange(self.count)))
        return self._columns[name].whole()

    def words(self, spelling: Spelling) -> LexicalIndex:
        """The words of all texts; built by the first call, which reads every text, and cached."""
        with self._building:  # threads that search a new segment at the same time build them once
            made = self.known_words
            if made is None or made[0].key != spelling.key:
                texts = self.whole("text") if "text" in self.types else pa.nulls(self.count, pa.string())
                made = self.known_words = spelling, spelling.lexical_index(pc.fill_null(texts, ""))
            return made[1]

    def find(self, ids: pa.Array) -> Int64s:
        """The position of each id, or −1 if the segment does not have it. Deleted keywords are found too."""
        found = np.full(len(ids), -1, np.int64)
        if not len(ids) or str(ids.type) != self.id_type:
            return found
        if self._keys is None or self._order is None:  # ids are rows
            rows = int64_numpy(ids)
            if self._rows is None:
                inside = (rows >= self.first_row) & (rows <= self.last_row)
                return np.where(inside, rows - self.first_row, -1)
            first, last = self._rows.find(rows)
            return np.where(first < last, first, -1)
        first, last = self._keys.find(keys_of(ids))
        self._order.touch(4 * first, 4 * last)
        order = self._order.unchecked("<u4", self.count)
        open_runs = np.flatnonzero(first < last)  # runs longer than 1 are hash collisions
        while open_runs.size:
            positions = order[first[open_runs]].astype(np.int64)
            if int(positions.max()) >= self.count:
                raise self._order.corrupt("points outside the segment")
            same = np.asarray(pc.equal(self.ids(positions), ids.take(int64_array(open_runs))))
            found[open_runs[same]] = positions[same]
            first[open_runs] += 1
            open_runs = open_runs[~same & (first[open_runs] < last[open_runs])]
        return found

    def _run_of(self, tenant: pa.Array) -> tuple[Int64s, Int64s]:
        assert self._tenants is not None
        return self._tenants[0].find(keys_of(tenant))

    def most_of_tenant(self, tenant: pa.Array) -> int:
        """At most how many keywords one tenant has; more than it has only if keys of tenants collide."""
        first, last = self._run_of(tenant)
        return int(last[0] - first[0])

    def of_tenant(self, tenant: pa.Array) -> Int64s:
        """The positions of the keywords of one tenant, ascending; deleted keywords are found too."""
        assert self.tenant is not None
        assert self._tenants is not None
        order, (first, last) = self._tenants[1], self._run_of(tenant)
        order.touch(4 * first, 4 * last)
        found = order.unchecked("<u4", self.count)[first[0] : last[0]].astype(np.int64)
        if found.size and int(found.max()) >= self.count:
            raise order.corrupt("points outside the segment")
        if pa.types.is_string(tenant.type):  # different texts may have equal keys
            same = pc.equal(self.column(self.tenant, found), tenant[0])
            found = found[same.to_numpy(zero_copy_only=False)]
        return found

    def damage(self) -> Iterator[CorruptError]:
        """All damage in the file: wrong checksums first; if there are none, parts that disagree."""
        bad = list(self.file.damage())
        yield from bad
        if not bad:
            yield from self._disagreements()

    def _disagreements(self) -> Iterator[CorruptError]:
        everything = np.arange(self.count)
        try:
            rows = self.rows(everything)
            if rows[0] != self.first_row or rows[-1] != self.last_row or np.any(np.diff(rows) <= 0):
                yield self._corrupt("its rows do not ascend from the first to the last")
            for column in self._columns.values():
                column.whole()
            for start in range(0, self.count, CHUNK):
                span = everything[start : start + CHUNK]
                if not np.array_equal(self.find(self.ids(span)), span):
                    yield self._corrupt("its ids are not found where they are")
                    break
            if self.tenant is not None:
                for part, wanted in sorted_parts(keys_of(self.whole(self.tenant))).items():
                    section = self.file.section(f"tenant.{part}")
                    if not np.array_equal(section.view(wanted.dtype, wanted.size), wanted):
                        yield section.corrupt("does not lead to the keywords of the tenants")
        except CorruptError as error:
            yield error

    def _read_columns(self, specs: Any) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        if not isinstance(specs, list):
            raise self._corrupt("its columns cannot be understood")
        for number, spec in enumerate(specs):
            if not isinstance(spec, list) or [type(part) for part in spec] != [str, str, int, bool]:
                raise self._corrupt("its columns cannot be understood")
            column = Column(self.file, f"column.{number}", ColumnSpec(*spec), self.count)
            if column.name in columns:
                raise self._corrupt(f"column {column.name!r} is there twice")
            columns[column.name] = column
        return columns

    def _whole_number(self, key: str, low: int, high: int) -> int:
        value = self.file.meta.get(key)
        if type(value) is not int or not low <= value <= high:
            raise self._corrupt(f"its {key} cannot be {value!r}")
        return value

    def _corrupt(self, what: str) -> CorruptError:
        return CorruptError(f"{self.path} is damaged: {what}")


def read_column(table: KeywordRows | Segment, name: str, dtype: pa.DataType, positions: Int64s) -> pa.Array:
    """A column, or the ids, at these positions; nulls if the table lacks the column."""
    if name == "id":
        return table.ids(positions)
    return table.column(name, positions) if name in table.types else pa.nulls(len(positions), dtype)


def _regroup(parts: Iterator[Codes]) -> Iterator[Codes]:
    """Regroup codes into chunks of whole groups, as the layout requires; only the last may be partial."""
    held: list[Codes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= CHUNK:
            joined = Codes.concat(held)
            whole = size // layout.GROUP * layout.GROUP
            yield joined[:whole]
            held, size = [joined[whole:]], size - whole
    if size:
        yield Codes.concat(held)
