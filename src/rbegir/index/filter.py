"""Filters: from a `where` to the keywords of a segment that pass it.

A filter is a pyarrow expression, given as such or as text (`where`).

Arrow evaluates the expression over the mapped columns of a segment, block by block, and reads only the
columns that it names. The result is a mask, and the scan scores only keywords in the mask, so the filtered
top k is the true top k of the keywords that pass, for any selectivity. Segments never change, so each caches
the masks of recent textual filters, and repeating a filter costs nothing. A segment caches as many masks as
fit into KEPT_BYTES, and at least KEPT; the least recently used are evicted.

The queries of a batch often come with filters such as `user = 4711`, each with a value of its own.
`found_together` reads their column once and divides its positions among the masks of all values, instead of
comparing the whole column with each.

Tests of texts and lists are slow, a hundred of them take minutes over a large index. A caller that may lose
interest says so with `while_wanted`: the evaluation then ends after the current block, whose size depends on
the number of such tests, so that a block takes a fraction of a second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

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
_wanted: ContextVar[Callable[[], bool] | None] = ContextVar("wanted", default=None)


@contextmanager
def while_wanted(wanted: Callable[[], bool] | None) -> Iterator[None]:
    """Abandon filters that this thread or task evaluates in the block when `wanted` returns False.

    Nothing passes an abandoned filter, so its result must not be used.
    """
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


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
        kept = None if self._key is None else segment.filters.pop(self._key, None)
        mask = self._evaluated(segment) if kept is None else kept
        if mask is None:
            return masks.empty(segment.count)
        self.keep(segment, mask)
        return mask

    def is_kept(self, segment: Segment) -> bool:
        return self._key in segment.filters

    def keep(self, segment: Segment, mask: masks.Mask) -> None:
        """Cache what passes, if the filter is a text."""
        if self._key is not None:
            segment.filters[self._key] = masks.freeze(mask)
            room = min(max(KEPT, KEPT_BYTES // max(1, mask.nbytes)), KEPT_MOST)
            for old in list(segment.filters)[:-room]:
                segment.filters.pop(old, None)

    def _evaluated(self, segment: Segment) -> masks.Mask | None:
        """The positions that pass; None if that is not wanted any more."""
        here = {"id", *segment.types}
        columns = {name: segment.whole(name) if name in here else None for name in self._columns}
        mask = masks.empty(segment.count)
        wanted = _wanted.get()
        for start in range(0, segment.count, self._rows):
            if wanted is not None and not wanted():
                return None
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


class FoundTogether:
    """A filter, with the masks that were found together with those of others."""

    def __init__(self, filter_: Filter) -> None:
        self.filter, self.masks = filter_, dict[Segment, masks.Mask]()

    def passing(self, segment: Segment) -> masks.Mask:
        mask = self.masks.get(segment)
        return self.filter.passing(segment) if mask is None else mask


def found_together(filters: Iterable[Filter], segments: Sequence[Segment]) -> list[FoundTogether]:
    """Finds in one pass what passes those of the filters that look for a value each in the same column, if
    many of them are not cached."""
    found = [FoundTogether(one) for one in filters]
    columns: dict[str, list[FoundTogether]] = {}
    for one in found:
        if one.filter.equality is not None:
            columns.setdefault(one.filter.equality.column, []).append(one)
    for alike in columns.values():
        for segment in segments:
            if sum(not one.filter.is_kept(segment) for one in alike) >= TOGETHER:
                divided = _divided([one.filter for one in alike], segment)
                for one, mask in zip(alike, divided, strict=False):  # none if nobody waits
                    one.filter.keep(segment, mask)
                    one.masks[segment] = mask
    return found


def _divided(filters: Sequence[Filter], segment: Segment) -> list[masks.Mask]:
    """What passes each of these filters, which look for values in one column; nothing if nobody waits."""
    tests = [one.equality for one in filters if one.equality is not None]
    values = pa.array([test.value.as_py() for test in tests], tests[0].value.type).dictionary_encode()
    found = [masks.empty(segment.count) for _ in values.dictionary]
    if tests[0].column in {"id", *segment.types}:  # otherwise all its values are null
        column, wanted = segment.whole(tests[0].column), _wanted.get()
        for start in range(0, segment.count, BLOCK_ROWS):
            if wanted is not None and not wanted():
                return []
            block = column.slice(start, BLOCK_ROWS).cast(values.type.value_type)
            numbers = pc.index_in(block, value_set=values.dictionary).fill_null(-1)
            _core.divide(numbers.to_numpy(), start, found)
    return [found[number] for number in values.indices.to_pylist()]


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
