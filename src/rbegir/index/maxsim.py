"""MaxSim over a snapshot: items ranked by several vectors per query and several keywords per item.

Every item with a keyword that passes the filter is scored (`search.items` has the formula). The score has the
same bits on every device, with every instruction set, number of threads and division into segments. Items
with equal scores are ordered by their first keywords.

For each attribute that names items, the keywords of a snapshot are sorted by item once, which takes 8 bytes
per keyword. Keywords that were added item by item are sorted already: their codes are read from beginning to
end. Others take several times as long.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rbegir.base import masks
from rbegir.errors import InputError
from rbegir.index.columns import check_item
from rbegir.index.query import Searcher, query_values, scope
from rbegir.index.snapshot import Snapshot
from rbegir.index.tenant import within
from rbegir.search.items import ItemOrder, item_numbers
from rbegir.search.partition import Partition
from rbegir.search.request import SearchRequest


def maxsim(state: Snapshot, queries: Sequence[Any], request: SearchRequest, searcher: Searcher) -> pa.Table:
    """The best k items of each query, whose vectors are codes or integers [vectors, n]."""
    item, snapshot = request.item or "", within(state, request.tenant)
    backend = searcher.backend(snapshot)
    check_item(item, snapshot.manifest.columns)
    if request.filters_each:
        raise InputError("maxsim takes one filter for all queries", hint="rank the queries one by one")
    values = [query_values(query, snapshot.manifest) for query in queries]
    partitions = _all_partitions(snapshot, request)
    order = _item_order(snapshot, item)
    names = ("query", "rank", "item", "score", "id")
    found: list[list[pa.Array]] = []
    for number, vectors in enumerate(values):
        hits = backend.maxsim(partitions, vectors, order, request.depth)
        of_query = np.full(hits.items.size, number), np.arange(1, hits.items.size + 1)
        stored = [snapshot.array(item, hits.firsts), pa.array(hits.scores), snapshot.array("id", hits.firsts)]
        found.append([*map(pa.array, of_query), *stored])
    kinds = (pa.int64(), pa.int64(), snapshot.types()[item], pa.float64(), snapshot.types()["id"])
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    return pa.Table.from_batches([pa.record_batch(columns, schema=schema) for columns in found], schema)


def _all_partitions(snapshot: Snapshot, request: SearchRequest) -> list[Partition]:
    """Every segment with its candidates, those without any too, so that positions do not change with the
    filter: what a backend knows about the order of items holds for all filters."""
    searched, partitions, _ = scope(snapshot, request, 0)
    having = dict(zip(searched.segments, partitions, strict=True))
    return [
        having.get(one)
        or Partition(one.segment.packed(), one.entry.count, masks.freeze(masks.empty(one.entry.count)))
        for one in snapshot.segments
    ]


def _item_order(snapshot: Snapshot, item: str) -> ItemOrder:
    """The live keywords, item after item; items are in the order of their first keywords. Read once per
    snapshot."""
    if item not in snapshot.items:
        positions = snapshot.select(None)  # in the order of rows
        items = item_numbers(snapshot.array(item, positions))
        by_item = np.argsort(items, kind="stable")
        starts = np.flatnonzero(np.diff(items[by_item], prepend=-1))
        snapshot.items[item] = ItemOrder(positions[by_item], np.append(starts, items.size))
    return snapshot.items[item]
