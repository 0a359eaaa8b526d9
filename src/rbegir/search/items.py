"""One hit per item: the best keyword of each of the best k items.

An item is what several keywords belong to, such as a document with its chunks. An attribute names it:
keywords with equal values belong to one item, and a keyword without a value is an item of its own. The result
is what remains of all hits in the total order if all but the first hit of each item are left out.

It comes from ordinary searches, which are exact on every backend and with every filter: DEEPER · k hits at
first, and DEEPER times as many for the queries that found fewer than k items in them. Rejected: a scan that
keeps the best of each item. It could not skip a keyword by one threshold per query, which makes scans fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.arguments import can_name
from rbegir.errors import InputError
from rbegir.search.partition import Candidates, Int64s

DEEPER = 8
ROOM = 1 << 22  # hits of all queries that are looked at together

Bools = npt.NDArray[np.bool_]
Find = Callable[[Int64s, int | None], Candidates]  # queries, hits → the best hits of these queries
Look = Callable[[Int64s, Candidates], tuple[Int64s, Bools]]  # → their items, and which may be returned


def check_item(name: str, columns: Mapping[str, str]) -> None:
    """Refuse a column that does not name items; `columns` are the types of the attributes."""
    if name not in columns:
        listed = ", ".join(columns) or "none"
        raise InputError(f"item must be an attribute, got {name!r}", hint=f"the attributes are: {listed}")
    if not can_name(columns[name]):
        raise InputError(
            f"item must be an attribute of strings or 64-bit integers, {name!r} is {columns[name]}"
        )


def item_numbers(column: pa.Array) -> Int64s:
    """The item of each value of a column: the place of the first equal value, for a null its own place."""
    encoded = column.dictionary_encode()
    here, known = np.arange(len(column)), encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    values = encoded.indices.fill_null(0).to_numpy()
    first = np.zeros(max(1, len(encoded.dictionary)), np.int64)
    first[values[known][::-1]] = here[known][::-1]  # the last assignment counts
    return np.where(known, first[values], here)


def first_of_items(items: Int64s) -> Bools:
    """Whether each hit is the first of its item among those of its query; both [queries, m]."""
    query = np.broadcast_to(np.arange(len(items))[:, None], items.shape).ravel()
    order = np.lexsort((items.ravel(), query))  # stable: the first hit of an item comes first
    changes = np.ones(order.size, np.bool_)
    changes[1:] = (np.diff(query[order]) != 0) | (np.diff(items.ravel()[order]) != 0)
    first = np.empty(order.size, np.bool_)
    first[order] = changes
    return first.reshape(items.shape)


def best_of_items(find: Find, look: Look, queries: int, k: int | None) -> Candidates:
    """The best hit of each of the best k items of every query, in the total order; k None: of all items."""
    parts: list[tuple[Int64s, Candidates]] = []
    left, width = np.arange(queries), None if k is None else DEEPER * k
    while left.size:
        together = left.size if width is None else max(1, ROOM // width)
        deeper = []
        for start in range(0, left.size, together):
            these = left[start : start + together]
            found = find(these, width)  # [these, ≤ width]
            items, may = look(these, found)
            kept = first_of_items(items) & may
            done = np.ones(these.size, np.bool_)
            if k is not None and width is not None:
                done = (kept.sum(axis=1) >= k) | (found.counts < width)
            chosen = Candidates(found.keys[done], found.positions[done])
            parts.append((these[done], chosen.only(kept[done], found.keys.shape[1] if k is None else k)))
            deeper.append(these[~done])
        left, width = np.concatenate(deeper), None if width is None else DEEPER * width
    return Candidates.spread(queries, parts)
