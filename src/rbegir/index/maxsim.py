"""MaxSim: items ranked by several vectors per query and several keywords per item (late interaction).

    score(query, item) = Σ over vectors q of the query of  max over keywords k of the item of  cos(q, k)

Every item with a keyword that passes the filter is scored. The cosine is that of the codes: the exact integer
q·k, times 1/‖k‖ and 1/‖q‖ in float64. The sum has a fixed order (`_native/maxsim_simd.hpp`), so a score has
the same bits with every instruction set, number of threads and division into segments. Items with equal
scores are ordered by their first keywords.

For each attribute that names items, the keywords of a snapshot are sorted by item once, which takes 8 bytes
per keyword. Keywords that were added item by item are sorted already: their codes are read from beginning to
end. Others take several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rbegir._native import _core, choose_isa
from rbegir.errors import InputError
from rbegir.index.columns import Int64s
from rbegir.index.query import query_values, scope
from rbegir.index.snapshot import Snapshot
from rbegir.index.tenant import within
from rbegir.search.items import check_item, item_numbers
from rbegir.search.request import SearchRequest


def maxsim(state: Snapshot, queries: Sequence[Any], request: SearchRequest, threads: int) -> pa.Table:
    """The best k items of each query, whose vectors are codes or integers [vectors, n]."""
    item, snapshot = request.item or "", within(state, request.tenant)
    check_item(item, snapshot.manifest.columns)
    if request.filters_each:
        raise InputError("maxsim takes one filter for all queries", hint="rank the queries one by one")
    values = [query_values(query, snapshot.manifest) for query in queries]
    for number, vectors in enumerate(values):
        if not len(vectors):
            raise InputError(f"query {number} has no vectors", hint="give every query at least one vector")
    numbers, partitions, _ = scope(snapshot, request, 0)
    begins = np.cumsum([0, *(one.entry.count for one in snapshot.segments)])
    parts = [
        (part.packed, part.count, part.mask, int(begins[number]))
        for number, part in zip(numbers, partitions, strict=True)
    ]
    positions, starts = _item_order(snapshot, item, begins)
    scores, first = np.empty(len(starts) - 1), np.empty(len(starts) - 1, np.int64)
    names = ("query", "rank", "item", "score", "id")
    found: list[list[pa.Array]] = []
    for number, vectors in enumerate(values):
        _core.maxsim(
            parts,
            vectors,
            positions,
            starts,
            scores,
            first,
            planes=snapshot.manifest.keyword_planes,
            threads=threads,
            isa=choose_isa(),
        )
        best = _best(np.where(first < 0, -np.inf, scores), min(request.depth, int(np.sum(first >= 0))))
        places = snapshot.locate(range(len(snapshot.segments)), first[best])
        of_query = np.full(best.size, number), np.arange(1, best.size + 1)
        stored = snapshot.array(item, places), pa.array(scores[best]), snapshot.array("id", places)
        found.append([*map(pa.array, of_query), *stored])
    kinds = (pa.int64(), pa.int64(), snapshot.types()[item], pa.float64(), snapshot.types()["id"])
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    return pa.Table.from_batches([pa.record_batch(columns, schema=schema) for columns in found], schema)


def _item_order(snapshot: Snapshot, item: str, begins: Int64s) -> tuple[Int64s, Int64s]:
    """The live keywords, item after item: their positions [keywords], counted through all segments, and where
    each item starts [items + 1]. Items are in the order of their first keywords. Read once per snapshot."""
    if item not in snapshot.items:
        places = snapshot.select(None)  # in the order of rows
        items = item_numbers(snapshot.array(item, places))
        by_item = np.argsort(items, kind="stable")
        starts = np.flatnonzero(np.diff(items[by_item], prepend=-1))
        positions = (begins[places.segment] + places.position)[by_item]
        snapshot.items[item] = positions, np.append(starts, items.size)
    return snapshot.items[item]


def _best(scores: np.ndarray[Any, np.dtype[np.float64]], k: int) -> Int64s:
    """The places of the k largest, in falling order, the first of equals first."""
    if not k:
        return np.zeros(0, np.int64)
    kept = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    return kept[np.argsort(-scores[kept], kind="stable")][:k]
