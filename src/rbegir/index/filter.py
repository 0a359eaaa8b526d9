"""Filters: from a `where` to the keywords of a segment that pass it.

A filter is a pyarrow expression, given as such or as text (`where`).

Arrow evaluates the expression over the mapped columns of a segment, block by block, and reads only the
columns that it names. The result is a mask, and the scan scores only keywords in the mask, so the filtered
top k is the true top k of the keywords that pass, for any selectivity. Segments never change, so each caches
the masks of recent textual filters, and repeating a filter costs nothing. A segment caches as many masks as
fit into KEPT_BYTES, and at least KEPT; the least recently used are evicted. An evicted mask is found as long
as somebody else holds it.

The queries of a batch often come with filters such as `user = 4711`, each with a value of its own.
`found_together` reads their column once and divides its positions among the masks of all values, instead of
comparing the whole column with each.

Tests of texts and lists are slow, a hundred of them take minutes over a large index. `evaluation` therefore
pauses before each block, whose size depends on the number of such tests, so that a block takes a fraction of
a second. The caller decides whether and when to go on.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir._native import _core
from rbegir.base import masks
from rbegir.base.arguments import sums_of_lists
from rbegir.errors import FilterError
from rbegir.index.segment import Segment
from rbegir.index.where import Parser

BLOCK_ROWS = 1 << 20  # rows evaluated at a time: whole words of a mask
LEAST_ROWS = 1 << 14  # the same for a filter with many slow tests; Arrow prepares each test once per block
KEPT, KEPT_BYTES = 16, 32 << 20  # masks kept per segment
KEPT_MOST = 1024
TOGETHER = 8  # values of a column that are worth looking for in one pass


class Filter:
    """A `where` bound to the columns of an index."""

    def __init__(self, where: str | pc.Expression, types: Mapping[str, pa.DataType]) -> None:
        self._types = dict(types)
        if isinstance(where, str):
            self._key: str | None = where
            parser = Parser(where, types)
            self._expression = parser.parse()
            self._columns, self._item_tests = list(parser.named), parser.item_tests
            self._rows = max(LEAST_ROWS, BLOCK_ROWS // max(1, parser.slow_tests) // 64 * 64)
            self.equality = parser.equality
            if self.equality is None:  # the parser knows that this one can be evaluated
                self._evaluate(_nothing({name: types[name] for name in self._columns}))
        elif isinstance(where, pc.Expression):
            self._key = self.equality = None
            self._expression, self._item_tests, self._rows = where, {}, BLOCK_ROWS
            self._columns = self._named_columns()
        else:
            raise FilterError(
                f"where must be a text or a pyarrow expression, got {type(where).__name__}",
                hint="write for example where=\"price < 10\" or where=pyarrow.compute.field('price') < 10",
            )

    def passing(self, segment: Segment) -> masks.Mask:
        """The positions of the segment for which the filter is true."""
        steps = self.evaluation(segment)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                passing: masks.Mask = end.value
                return passing

    def evaluation(self, segment: Segment) -> Generator[None, None, masks.Mask]:
        """Evaluate a filter with a pause before each block. A mask that is known needs no block."""
        mask = self.known(segment)
        if mask is None:
            mask = masks.freeze((yield from self._evaluated(segment)))
        self.keep(segment, mask)
        return mask

    def keep(self, segment: Segment, mask: masks.Mask) -> None:
        """Cache what passes, if the filter is a text."""
        if self._key is not None:
            segment.filters.pop(self._key, None)
            segment.filters[self._key] = mask
            if segment.masks.get(self._key) is not mask:
                segment.masks[self._key] = mask
            room = min(max(KEPT, KEPT_BYTES // max(1, mask.nbytes)), KEPT_MOST)
            for old in list(segment.filters)[:-room] if len(segment.filters) > room else ():
                segment.filters.pop(old, None)

    def known(self, segment: Segment) -> masks.Mask | None:
        """The mask of what passes, if it is cached or still in use."""
        return None if self._key is None else segment.masks.get(self._key)

    def _evaluated(self, segment: Segment) -> Generator[None, None, masks.Mask]:
        here = {"id", *segment.types}
        columns = {name: segment.whole(name) if name in here else None for name in self._columns}
        mask = masks.empty(segment.count)
        for start in range(0, segment.count, self._rows):
            yield
            if (known := self.known(segment)) is not None:  # somebody else was faster
                return known
            size = min(self._rows, segment.count - start)
            arrays = [
                pa.nulls(size, self._types[name]) if column is None else column.slice(start, size)
                for name, column in columns.items()
            ]
            # a table without columns has no rows, so add one that is never read
            table = pa.table([*arrays, pa.nulls(size)], names=[*columns, ""])
            mask[start // 64 : -(-(start + size) // 64)] = self._evaluate(table)
        return mask

    @classmethod
    def of(cls, where: str | pc.Expression, types: Mapping[str, pa.DataType]) -> Filter:
        """A filter; recent texts are parsed only once."""
        return _parsed(where, tuple(types.items())) if isinstance(where, str) else cls(where, types)

    def _named_columns(self) -> list[str]:
        """The columns that a pyarrow expression may need, found by their names in its printed form.

        Raises FilterError if the expression fails even with all columns.
        """
        shown = str(self._expression)
        named = [name for name in self._types if name in shown]
        try:
            self._evaluate(_nothing({name: self._types[name] for name in named}))
        except FilterError:  # it is wrong, or its printed form is incomplete or spells names differently
            named = list(self._types)
            self._evaluate(_nothing(self._types))
        return named

    def _evaluate(self, table: pa.Table) -> masks.Mask:
        from pyarrow import acero  # as slow to import as the rest of pyarrow, so only filters import it

        for name, (column, options) in self._item_tests.items():
            table = table.append_column(name, _any_item_in(table[column], options))
        plan = acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
                acero.Declaration("project", acero.ProjectNodeOptions([self._expression], ["passes"])),
            ]
        )
        try:
            result = plan.to_table(use_threads=False).column("passes")
        except (pa.ArrowException, KeyError, TypeError) as error:
            raise FilterError(
                f"where cannot be evaluated: {str(error).splitlines()[0]}",
                hint=f"the columns are: {', '.join(f'{name} ({t})' for name, t in self._types.items())}",
            ) from error
        if not pa.types.is_boolean(result.type):
            raise FilterError(f"where must be true or false per keyword, but it gives {result.type}")
        flags = result.fill_null(False).combine_chunks()
        return masks.from_bytes(np.frombuffer(flags.buffers()[1] or b"", np.uint8), flags.offset, len(flags))


def found_together(filters: Iterable[Filter], segments: Sequence[Segment]) -> Iterator[masks.Mask | None]:
    """Find in one pass what passes those of the filters that look for a value each in the same column, if
    many of them are not known. Pauses with None before each block, and with each mask: the filters know it as
    long as the caller holds it."""
    columns: dict[str, list[Filter]] = {}
    for one in filters:
        if one.equality is not None:
            columns.setdefault(one.equality.column, []).append(one)
    for alike in columns.values():
        for segment in segments:
            if sum(one.known(segment) is None for one in alike) >= TOGETHER:
                yield from _divided(alike, segment)


def _divided(filters: Sequence[Filter], segment: Segment) -> Iterator[masks.Mask | None]:
    """Find what passes each of these filters, which look for values in one column."""
    tests = [one.equality for one in filters if one.equality is not None]
    values = pa.array([test.value.as_py() for test in tests], tests[0].value.type).dictionary_encode()
    found = [masks.empty(segment.count) for _ in values.dictionary]
    if tests[0].column in {"id", *segment.types}:  # otherwise all its values are null
        column = segment.whole(tests[0].column)
        for start in range(0, segment.count, BLOCK_ROWS):
            yield None
            block = column.slice(start, BLOCK_ROWS)
            numbers = pc.index_in(block, value_set=values.dictionary).fill_null(-1)
            _core.divide(numbers.to_numpy(), start, found)
    for one, number in zip(filters, values.indices.to_pylist(), strict=True):
        one.keep(segment, masks.freeze(found[number]))
        yield found[number]


@functools.lru_cache(KEPT_MOST)
def _parsed(where: str, types: tuple[tuple[str, pa.DataType], ...]) -> Filter:
    return Filter(where, dict(types))


def _nothing(types: Mapping[str, pa.DataType]) -> pa.Table:
    names = [*types, ""]
    return pa.table([pa.nulls(0, t) for t in (*types.values(), pa.null())], names=names)


def _any_item_in(lists: pa.ChunkedArray, options: pa.Array) -> pa.Array:
    """Whether an item of each list is among the options; null for null."""
    array = lists.combine_chunks()
    flat = array.flatten()
    if pa.types.is_integer(flat.type):
        flat = flat.cast(options.type)
    found = np.asarray(pc.is_in(flat, value_set=options))
    return pa.array(sums_of_lists(array, found) > 0, mask=np.asarray(array.is_null()))
