"""From a `where` to the positions of a segment that pass it.

A filter is a pyarrow expression, given as such or as text (`where.py`). Arrow evaluates it over the mapped
columns of a segment, piece by piece; only the columns that it names are read. What passes is a mask, and the
scan scores what is in the mask: the filtered top k is the true top k of what passes, for any selectivity.

A segment never changes, so masks of textual filters are kept with it and a repeated filter costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base import masks
from rbegir.errors import FilterError
from rbegir.index.segment import Segment
from rbegir.index.where import parse

PIECE = 1 << 20  # rows evaluated at a time
KEPT = 16  # masks a segment keeps


class Filter:
    """A `where`, bound to the columns of an index."""

    def __init__(self, where: str | pc.Expression, types: Mapping[str, pa.DataType]) -> None:
        if isinstance(where, str):
            self._key: str | None = where
            self._expression = parse(where, types)
        elif isinstance(where, pc.Expression):
            self._key = None
            self._expression = where
        else:
            raise FilterError(
                f"where must be a text or a pyarrow expression, got {type(where).__name__}",
                hint="write for example where=\"price < 10\" or where=pyarrow.compute.field('price') < 10",
            )
        self._types = dict(types)
        self._columns = self._named_columns()

    def passing(self, segment: Segment) -> masks.Mask:
        """The positions of the segment for which the filter is true."""
        if self._key is not None and self._key in segment.filters:
            return segment.filters[self._key]
        here = {"id", *segment.types}
        columns = {name: segment.whole(name) if name in here else None for name in self._columns}
        flags = np.zeros(segment.count, np.bool_)
        for start in range(0, segment.count, PIECE):
            size = min(PIECE, segment.count - start)
            arrays = [
                pa.nulls(size, self._types[name]) if column is None else column.slice(start, size)
                for name, column in columns.items()
            ]
            # a table without columns has no rows, so one that is never read stands in
            table = pa.table([*arrays, pa.nulls(size)], names=[*columns, ""])
            flags[start : start + size] = self._evaluate(table)
        mask = masks.from_bools(flags)
        if self._key is not None:
            for old in list(segment.filters)[: 1 - KEPT]:
                segment.filters.pop(old, None)
            segment.filters[self._key] = masks.freeze(mask)
        return mask

    def _named_columns(self) -> list[str]:
        """The columns without which the expression cannot be evaluated; it must evaluate with all of them."""
        self._evaluate(_nothing(self._types))
        named: list[str] = []
        for name in self._types:
            rest = {other: dtype for other, dtype in self._types.items() if other != name}
            try:
                self._evaluate(_nothing(rest))
            except FilterError:
                named.append(name)
        return named

    def _evaluate(self, table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        from pyarrow import acero  # costs as much to import as the rest of pyarrow: only filters pay

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
            raise FilterError(f"where must be true or false for a keyword, but it gives {result.type}")
        flags = result.fill_null(False).combine_chunks()
        bits = np.frombuffer(flags.buffers()[1] or b"", np.uint8)
        return np.unpackbits(bits, count=flags.offset + len(flags), bitorder="little")[flags.offset :].view(
            np.bool_
        )


def _nothing(types: Mapping[str, pa.DataType]) -> pa.Table:
    names = [*types, ""]
    return pa.table([pa.nulls(0, t) for t in (*types.values(), pa.null())], names=names)
