"""Items of several keywords: the best keyword of each item, and MaxSim.

An item is what several keywords belong to, such as a document with its chunks. An attribute names it:
keywords with equal values belong to one item, and a keyword without a value is an item of its own.

*One hit per item* is what remains of all hits in the total order if all but the first hit of each item are
left out. It comes from ordinary searches, which are exact on every backend and with every filter: DEEPER · k
hits at first, and DEEPER times as many for the queries that found fewer than k items in them. Rejected: a
scan that keeps the best of each item. It could not skip a keyword by one threshold per query, which makes
scans fast.

*MaxSim* ranks items by several vectors per query:

    score(query, item) = Σ over vectors q of the query of  max over keywords k of the item of  cos(q, k)

The maxima are taken of q·k · 1/‖k‖, an exact integer times a float64. They are multiplied by 1/‖q‖ and added
as in `_native/maxsim_simd.hpp`: within blocks of 32 vectors by halves, then block after block. So every
backend returns the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.search.partition import Candidates, Int64s, Values

if TYPE_CHECKING:
    import pyarrow as pa

DEEPER = 8
ROOM = 1 << 22  # hits of all queries that are looked at together

BLOCK = 32  # vectors that are added by halves

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Find = Callable[[Int64s, int | None], Candidates]  # queries, hits → the best hits of these queries
Look = Callable[[Int64s, Candidates], tuple[Int64s, Bools]]  # → their items, and which may be returned


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


@dataclass(frozen=True, eq=False)
class ItemOrder:
    """The keywords of each item. A backend may keep what it derives from this as long as it lives.

    Keywords that no item has, such as deleted ones, are not there; positions of no partition do not count.
    """

    positions: Int64s  # [keywords] item after item, counted through all partitions
    starts: Int64s  # [items + 1] where each item starts


class ItemHits(NamedTuple):
    """The best items of a query, in falling order of scores; of equals the first item comes first."""

    items: Int64s  # [hits]
    scores: Floats  # [hits]
    firsts: Int64s  # [hits] the position of the first candidate of each item


def best_items(items: Int64s, scores: Floats, firsts: Int64s, k: int) -> ItemHits:
    """The best k of some items, given in ascending order; `firsts` is −1 for an item without candidates."""
    scores = np.where(firsts < 0, -np.inf, scores)
    k = min(k, int(np.sum(firsts >= 0)))
    if not k:
        return ItemHits(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
    kept = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    best = kept[np.argsort(-scores[kept], kind="stable")][:k]
    return ItemHits(items[best], scores[best], firsts[best])


def inverse_norms(values: Values) -> Floats:
    """1/‖q‖ of each vector; 0 for a zero vector."""
    norms = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1))
    inverse: Floats = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    return inverse


def add_up(matches: Floats, values: Values) -> Floats:
    """Scores [items] from the maxima of q·k / ‖k‖ [items, vectors]."""
    inverse, scores = inverse_norms(values), np.zeros(len(matches))
    for start in range(0, len(values), BLOCK):
        own = matches[:, start : start + BLOCK] * inverse[start : start + BLOCK]
        block = np.zeros((len(matches), BLOCK))
        block[:, : own.shape[1]] = own
        while block.shape[1] > 1:
            half = block.shape[1] // 2
            block = block[:, :half] + block[:, half:]
        scores += block[:, 0]
    return scores
